package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestStockCheckpoint takes a checkpoint with ctr and restores it with ctr, under both names of the runtime.
func TestStockCheckpoint(t *testing.T) {
	for _, runtime := range []string{cryoRuntime, "io.containerd.runc.cryo.v1"} {
		t.Run(runtime, func(t *testing.T) {
			a, _ := pair(t)
			id, ref := name(t), "cryo.test/"+name(t)
			start(t, a, id, []string{"--runtime", runtime, "--memory-limit", "268435456"}, "workload", "count", "--memory", "8")
			before := stockCheckpoint(t, a, id, ref)
			must(t, a.Ctr(t.Context(), "containers", "restore", "--live", "--rw", id, ref))
			wentOn(t, before, await(t, a, id))
			if metrics := must(t, a.Ctr(t.Context(), "tasks", "metrics", id)).Stdout; !strings.Contains(metrics, "268435456") {
				t.Errorf("the memory limit is not among the restored task's metrics:\n%s", metrics)
			}
			must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "e", id, "workload", "ask"))
		})
	}
}

// stockCheckpoint takes a checkpoint with ctr, makes sure that the container has gone on, and removes it.
func stockCheckpoint(t *testing.T, h *lab.Host, id, ref string) lab.Answer {
	t.Helper()
	t.Cleanup(func() { h.Ctr(cleanupContext(t), "images", "delete", ref) })
	before := await(t, h, id)
	must(t, h.Ctr(t.Context(), "containers", "checkpoint", "--task", "--rw", "--image", id, ref))
	if _, status, err := h.Task(t.Context(), id); status != "RUNNING" {
		t.Errorf("after the checkpoint the container is %q (%v)", status, err)
	}
	eventually(t, "the container counts on", 30*time.Second, func() bool { return await(t, h, id).Count > before.Count })
	remove(t.Context(), h, id)
	return before
}

// wentOn fails the test unless after is of the same process as before, later, with the same memory.
func wentOn(t *testing.T, before, after lab.Answer) {
	t.Helper()
	if after.Life != before.Life || after.Count < before.Count || after.State["sha256"] != before.State["sha256"] {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// TestStockRestoredTask looks at what a restored task must have of a started one: its log goes on, and its exit code arrives.
func TestStockRestoredTask(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "cryo.test/"+name(t)
	start(t, a, id, nil, "workload", "count", "--memory", "8")
	eventually(t, "the count is past 1", 30*time.Second, func() bool { return await(t, a, id).Count > 1 })
	before := stockCheckpoint(t, a, id, ref)

	c, ctx := client(t, a), inDefault(t)
	image, err := c.GetImage(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	container, err := c.Restore(ctx, id, image, containerd.WithRestoreImage, containerd.WithRestoreSpec, containerd.WithRestoreRuntime, containerd.WithRestoreRW)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(a.Dir, "logs", id+"-restored")
	task, err := container.NewTask(ctx, cio.LogFile(log), containerd.WithTaskCheckpoint(image))
	if err != nil {
		t.Fatal(err)
	}
	exited, err := task.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Start(ctx); err != nil {
		t.Fatal(err)
	}
	wentOn(t, before, await(t, a, id))
	eventually(t, "log", 30*time.Second, func() bool { return strings.Contains(read(t, log), "count ") })
	if text := read(t, log); strings.Contains(text, "count 1\n") {
		t.Errorf("the log begins anew:\n%s", text)
	}
	if _, err := a.Ask(t.Context(), id, "exit", "7"); err != nil {
		t.Fatal(err)
	}
	select {
	case status := <-exited:
		if status.ExitCode() != 7 {
			t.Errorf("exit code %d (%v)", status.ExitCode(), status.Error())
		}
	case <-time.After(time.Minute):
		t.Error("the exit did not arrive")
	}
}

// TestStockRestoredSignals pauses, resumes and kills a restored task.
func TestStockRestoredSignals(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "cryo.test/"+name(t)
	start(t, a, id, nil, "workload", "count")
	stockCheckpoint(t, a, id, ref)
	must(t, a.Ctr(t.Context(), "containers", "restore", "--live", "--rw", id, ref))
	pid, _, err := a.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ command, status string }{{"pause", "PAUSED"}, {"resume", "RUNNING"}} {
		must(t, a.Ctr(t.Context(), "tasks", step.command, id))
		if _, status, err := a.Task(t.Context(), id); status != step.status {
			t.Errorf("after %s the task is %q (%v)", step.command, status, err)
		}
	}
	must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", id))
	eventually(t, "end", 30*time.Second, func() bool { return unix.Kill(pid, 0) != nil })
}

// read gives a file's contents; nothing if it is not there.
func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

// TestStockPrivileged restores a privileged container by stock ctr, which allows nothing beyond the specification: that has the kernel's files and cgroups writable.
func TestStockPrivileged(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	must(t, a.Ctr(t.Context(), "run", "--detach", "--privileged", "--mount", "type=cgroup,src=cgroup,dst=/sys/fs/cgroup,options=rw", "--runtime", cryoRuntime, shared.image, id, "workload", "count"))
	t.Cleanup(func() { remove(cleanupContext(t), a, id) })
	counts(t, a, id)
	image := "stock/" + id + ":1"
	t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "rm", "--sync", image) })
	must(t, a.Ctr(t.Context(), "containers", "checkpoint", "--rw", "--task", "--image", id, image))
	remove(t.Context(), a, id)
	must(t, a.Ctr(t.Context(), "containers", "restore", "--rw", "--live", id, image))
}
