package integration

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// badHooks are commands that do not do what they should, and what the error says.
var badHooks = []struct {
	name, command, says string
	code                int
}{
	{"fails", "echo; echo no room; echo hint: trust me; exit 3", `has exited with 3, and has printed "no room\nhint: trust me"`, codeAborted},
	{"is not there", `["/no/such/program"]`, "no such file", codePrecondition},
	{"is killed", "kill -KILL $$", "has exited with 137", codeAborted},
	{"hangs", hanging, "has not ended within 500ms", codeDeadline},
	{"prints without end", "while :; do echo 0123456789; cat /dev/null; done", "has not ended within 500ms", codeDeadline},
	{"is no command", `["sh",`, "is no array of a command and its arguments", codeUsage},
}

// hanging is a hook that waits for ever, and has begun a process that does.
const hanging = "mkfifo /hangs; cat /hangs & cat /hangs; true"

// waiters are the processes of cat on a host, of hooks that wait.
func waiters(t *testing.T, h *lab.Host) (n int) {
	t.Helper()
	for _, p := range processes(t, h) {
		if p.command == "cat" {
			n++
		}
	}
	return n
}

// TestContractHookBefore: where the hook before a checkpoint fails, there is no snapshot, the container goes on, and the hook after it has run.
func TestContractHookBefore(t *testing.T) {
	a, _ := pair(t)
	for _, test := range badHooks {
		t.Run(test.name, func(t *testing.T) {
			id, ref := name(t), "contract/"+name(t)+":1"
			start(t, a, id, hooked("before-checkpoint="+test.command, "after-checkpoint=echo after >>/ran", "hook-timeout=500ms"), "workload", "count")
			before := await(t, a, id)
			r := a.Cryo(t.Context(), "checkpoint", id, ref)
			if r.Code == 0 || !strings.Contains(r.Stderr, test.says) || !strings.Contains(r.Stderr, "runs on") {
				t.Errorf("exit code %d: %s", r.Code, r.Stderr)
			}
			if test.code != codeUsage && r.Code != test.code {
				t.Errorf("exit code %d, want %d: %s", r.Code, test.code, r.Stderr)
			}
			goneOn(t, before, await(t, a, id))
			if ran := ranHooks(t, a, id); test.code != codeUsage && !slices.Equal(ran, []string{"after"}) {
				t.Errorf("ran %v", ran)
			}
			if r := a.Cryo(t.Context(), "inspect", ref); r.Code != codeNotFound {
				t.Errorf("there is a snapshot: %s", r.Stdout)
			}
			eventually(t, "nothing is left of the hook", 10*time.Second, func() bool { return waiters(t, a) == 0 })
		})
	}
}

// TestContractHookAfterRestore: where the hook after a restore fails, the restore has failed with its reason, and nothing is left.
func TestContractHookAfterRestore(t *testing.T) {
	a, b := pair(t)
	for _, test := range badHooks {
		if test.code == codeUsage {
			continue // it is refused before a snapshot is taken
		}
		t.Run(test.name, func(t *testing.T) {
			j := journey{id: name(t)}
			start(t, a, j.id, hooked("after-restore="+test.command, "hook-timeout=500ms"), "workload", "count")
			checkpoint(t, a, j)
			cleanup(t, b, j.id)
			r := b.Cryo(t.Context(), "restore", j.ref(), "--plain-http")
			if r.Code == 0 || !strings.Contains(r.Stderr, test.says) || strings.Contains(r.Stderr, "\nhint: trust me") {
				t.Errorf("exit code %d: %s", r.Code, r.Stderr)
			}
			nothing(t, b, j.id, "no/such:1")
			eventually(t, "nothing is left of the hook", 10*time.Second, func() bool { return waiters(t, b) == 0 })
		})
	}
}

// TestContractHookInterrupted: a hook that hangs is broken off with the command, and so is what it is for.
func TestContractHookInterrupted(t *testing.T) {
	a, b := pair(t)
	hangs := func(h *lab.Host, hook string, args ...string) (r lab.Result) {
		t.Helper()
		c := begun(t, h, args...)
		eventually(t, "the hook "+hook+" hangs", 30*time.Second, func() bool { c.under(t); return waiters(t, h) > 0 })
		c.signal(syscall.SIGINT)
		if r = <-c.ended; r.Code != codeInterrupted {
			t.Errorf("%s: exit code %d: %s", hook, r.Code, r.Stderr)
		}
		eventually(t, "nothing is left of the hook", 10*time.Second, func() bool { return waiters(t, h) == 0 })
		return r
	}
	id := name(t)
	start(t, a, id, hooked("before-checkpoint="+hanging), "workload", "count")
	before := await(t, a, id)
	hangs(a, "before-checkpoint", "checkpoint", id, "contract/"+id+":1")
	goneOn(t, before, await(t, a, id))

	j := journey{id: name(t)}
	start(t, a, j.id, hooked("after-restore="+hanging), "workload", "count")
	checkpoint(t, a, j)
	cleanup(t, b, j.id)
	hangs(b, "after-restore", "restore", j.ref(), "--plain-http")
	nothing(t, b, j.id, "no/such:1")
}

// TestContractHookStock: a stock client that pauses the container gets no checkpoint with a hook before it, and the container goes on when the client resumes it.
func TestContractHookStock(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, hooked("before-checkpoint=true"), "workload", "count")
	before := await(t, a, id)
	if r := a.Ctr(t.Context(), "containers", "checkpoint", "--task", id, "cryo.test/"+id); r.Code == 0 || !strings.Contains(r.Stderr, "has paused the container") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	clearStockTemporary(t, a)
	goneOn(t, before, await(t, a, id))
}

// TestContractHookPod runs the hook of one container of a pod, by the pod's annotations.
func TestContractHookPod(t *testing.T) {
	path, before := pushedMarked(t, nil, "count")
	ref := shared.registry.Reference(path)
	h := annotationHost(t, "hookpod", shared.registry.Address)
	id := name(t)
	must(t, runPod(t, h, id, lab.ImageName, inPod("app", lab.ImageName, restoreAnnotation+"="+ref, "io.cryo.after-restore=exit 1", "io.cryo.after-restore.app=echo own >>/ran"), "workload", "count"))
	goneOn(t, before, await(t, h, id))
	if ran := fmt.Sprint(ranHooks(t, h, id)); ran != "[own]" {
		t.Errorf("ran %s", ran)
	}
	restoreOver(t, h)
	remove(t.Context(), h, id)
	must(t, runPod(t, h, id, lab.ImageName, inPod("sidecar", lab.ImageName, restoreAnnotation+"="+ref, "io.cryo.after-restore=true"), "workload", "count"))
	goneOn(t, before, await(t, h, id))
	restoreOver(t, h)
	remove(t.Context(), h, id)
	if r := runPod(t, h, name(t), lab.ImageName, inPod("app", lab.ImageName, restoreAnnotation+"="+ref, "io.cryo.after-restore=exit 1"), "workload", "count"); r.Code == 0 || !strings.Contains(r.Stderr, "has exited with 1") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	must(t, h.Cryo(t.Context(), "rm", ref))
}

// TestContractHookGPU runs hooks of a container with a GPU, with either engine, and has the one after a restore fail.
func TestContractHookGPU(t *testing.T) {
	a, b := gpuPair(t)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	for engine, flags := range engines {
		t.Run(engine, func(t *testing.T) {
			id := name(t)
			ref := shared.registry.Reference("contract/" + id + ":1")
			for _, h := range []*lab.Host{a, b} {
				forget(t, h, ref)
			}
			hooks := hooked("before-checkpoint=echo before >>/ran", "after-checkpoint=echo after >>/ran", "after-restore=echo restored >>/ran; [ ! -e /fails ]")
			before := startGPU(t, a, id, slices.Concat(oneGPU, flags, hooks, []string{"--mount", "type=bind,src=" + busybox + ",dst=/bin/sh,options=rbind:ro"}))
			ran := func(h *lab.Host) string {
				return strings.Join(strings.Fields(read(t, filepath.Join(upperDir(t, h, id), "ran"))), " ")
			}
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http"))
			unharmed(t, a, id, before)
			if got := ran(a); got != "before after" {
				t.Errorf("of a container that went on: %s", got)
			}
			cleanup(t, b, id)
			must(t, b.Cryo(t.Context(), "restore", ref, "--plain-http", "--device", "nvidia.com/gpu=1", "--allow", "mounts"))
			unharmed(t, b, id, before)
			if got := ran(b); got != "before restored" {
				t.Errorf("of a container that was restored: %s", got)
			}
			remove(t.Context(), b, id)
			must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "fails", id, "/bin/sh", "-c", "echo >/fails"))
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
			r := b.Cryo(t.Context(), "restore", ref, "--plain-http", "--device", "nvidia.com/gpu=1", "--allow", "mounts", "--pull", "always")
			if r.Code != codeAborted || !strings.Contains(r.Stderr, "io.cryo.after-restore has exited with 1") {
				t.Errorf("exit code %d: %s", r.Code, r.Stderr)
			}
			nothing(t, b, id, "no/such:1")
			settled(t, b)
		})
	}
}

// TestContractHookImage runs the commands that an image's labels name, and again those of a container that was restored. An annotation counts before them.
func TestContractHookImage(t *testing.T) {
	a, b := pair(t)
	const image = "cryo.test/hooks:1"
	labels := map[string]string{
		"io.cryo.before-checkpoint": "echo before >>/ran", "io.cryo.after-checkpoint": "echo after >>/ran", "io.cryo.after-restore": `["sh","-c","echo restored >>/ran"]`, "io.cryo.hook-timeout": "5s",
	}
	for _, h := range []*lab.Host{a, b} {
		if err := h.ImportLabelled(t.Context(), image, labels); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Ctr(context.WithoutCancel(t.Context()), "images", "rm", image) })
	}
	id, ref := name(t), shared.registry.Reference("contract/"+name(t)+":1")
	startImage(t, a, image, id, hooked("after-checkpoint=echo annotated >>/ran"), "workload", "count")
	before := await(t, a, id)
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	if ran := fmt.Sprint(ranHooks(t, a, id)); ran != "[before annotated]" {
		t.Errorf("of a container that went on: %s", ran)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	forget(t, b, ref)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http"))
	goneOn(t, before, await(t, b, id))
	must(t, b.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	if ran := fmt.Sprint(ranHooks(t, b, id)); ran != "[before annotated before restored before annotated]" {
		t.Errorf("of a container that was restored: %s", ran)
	}
}
