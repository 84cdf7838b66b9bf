package integration

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestShimNames runs a container by each name the runtime has.
func TestShimNames(t *testing.T) {
	a, _ := pair(t)
	for _, runtime := range []string{cryoRuntime, "io.containerd.runc.cryo.v1", shared.lab.Tool("containerd-shim-cryo-v1")} {
		t.Run(runtime, func(t *testing.T) {
			id := name(t)
			start(t, a, id, []string{"--runtime", runtime}, "workload", "count")
			if shim := executable(t, shimOf(t, a, id)); !strings.HasSuffix(shim, "/containerd-shim-cryo-v1") {
				t.Errorf("the task is under %s", shim)
			}
		})
	}
}

// TestShimForeground has ctr hand on the exit status, output and input of a container and of an exec.
func TestShimForeground(t *testing.T) {
	a, _ := pair(t)
	base := name(t)
	start(t, a, base, nil, "workload", "count")
	foreground := func(id string, script ...string) []string {
		return append([]string{"run", "--rm", "--runtime", cryoRuntime, lab.ImageName, id}, script...)
	}
	exec := func(id string, script ...string) []string {
		return append([]string{"tasks", "exec", "--exec-id", id, base}, script...)
	}
	for _, test := range []struct {
		what    string
		command func(id string, script ...string) []string
		script  []string
		input   string
		code    int
		stdout  string
		stderr  string
	}{
		{"run/success", foreground, []string{"true"}, "", 0, "", ""},
		{"run/status", foreground, []string{"sh", "-c", "exit 7"}, "", 7, "", ""},
		{"run/signal", foreground, []string{"sh", "-c", "sh -c 'kill -9 $$'; exit $?"}, "", 137, "", ""},
		{"run/output", foreground, []string{"sh", "-c", "echo out; echo err >&2"}, "", 0, "out\n", "err\n"},
		{"run/input", foreground, []string{"cat"}, "in\n", 0, "in\n", ""},
		{"run/missing", foreground, []string{"no-such-program"}, "", 1, "", "no-such-program"},
		{"exec/success", exec, []string{"true"}, "", 0, "", ""},
		{"exec/status", exec, []string{"sh", "-c", "exit 7"}, "", 7, "", ""},
		{"exec/output", exec, []string{"sh", "-c", "echo out; echo err >&2"}, "", 0, "out\n", "err\n"},
		{"exec/input", exec, []string{"cat"}, "in\n", 0, "in\n", ""},
		{"exec/missing", exec, []string{"no-such-program"}, "", 1, "", "no-such-program"},
	} {
		t.Run(test.what, func(t *testing.T) {
			id := name(t)
			cleanup(t, a, id)
			c := a.Command(t.Context(), "ctr", test.command(id, test.script...)...)
			if test.input != "" {
				c.Stdin = &lateEnd{Reader: strings.NewReader(test.input)}
			}
			r := lab.Finish(c)
			if r.Code != test.code || r.Stdout != test.stdout || !strings.Contains(r.Stderr, test.stderr) {
				t.Errorf("exit status %d, stdout %q, stderr %q; want %d, %q, %q", r.Code, r.Stdout, r.Stderr, test.code, test.stdout, test.stderr)
			}
		})
	}
}

// lateEnd is input whose end comes after a second: ctr loses an end that comes before it has made the task.
type lateEnd struct{ io.Reader }

func (l *lateEnd) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if err == io.EOF {
		time.Sleep(time.Second)
	}
	return n, err
}

// TestShimKill sends signals to the init process, to all, and to an exec.
func TestShimKill(t *testing.T) {
	a, _ := pair(t)
	for _, test := range []struct {
		signal string
		flags  []string
		code   uint32
	}{
		{"SIGTERM", nil, 0}, // the workload ends well
		{"SIGKILL", nil, 137},
		{"SIGKILL", []string{"--all"}, 137},
	} {
		t.Run(test.signal+strings.Join(test.flags, ""), func(t *testing.T) {
			id := name(t)
			task := created(t, a, id, cryoRuntime, nil, cio.NullIO, nil, "workload", "count")
			ended, err := task.Wait(inDefault(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := task.Start(inDefault(t)); err != nil {
				t.Fatal(err)
			}
			await(t, a, id)
			before := time.Now()
			must(t, a.Ctr(t.Context(), append(append([]string{"tasks", "kill", "--signal", test.signal}, test.flags...), id)...))
			select {
			case status := <-ended:
				code, at, err := status.Result()
				if err != nil || code != test.code {
					t.Errorf("exit status %d (%v), want %d", code, err, test.code)
				}
				if at.Before(before) || at.After(time.Now()) {
					t.Errorf("ended at %s, killed at %s", at, before)
				}
			case <-time.After(time.Minute):
				t.Fatal("wait has no answer after a minute")
			}
			if pid, status, err := a.Task(t.Context(), id); status != "STOPPED" {
				t.Errorf("task is %q, pid %d (%v)", status, pid, err)
			}
			deleted(t, a, id, test.code)
		})
	}
}

// deleted deletes a task that has ended, and wants that exit status; ctr tells it in a warning.
func deleted(t *testing.T, h *lab.Host, id string, code uint32) {
	t.Helper()
	r := must(t, h.Ctr(t.Context(), "tasks", "delete", id))
	if got := strings.Contains(r.Stderr, fmt.Sprintf("exit code %d", code)); got != (code != 0) {
		t.Errorf("exit status is not %d: %s", code, r.Stderr)
	}
}

// TestShimCrash kills the shim: containerd has its "delete" clear up, and the container is gone.
func TestShimCrash(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	events := watch(t, a, id)
	start(t, a, id, nil, "workload", "count")
	pid, _, err := a.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(shimOf(t, a, id), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "container's end", 30*time.Second, func() bool { return syscall.Kill(pid, 0) != nil })
	eventually(t, "task's end", 30*time.Second, func() bool {
		_, status, err := a.Task(t.Context(), id)
		return err == nil && status != "RUNNING"
	})
	eventually(t, "exit event", 30*time.Second, func() bool { return slices.Contains(events(), "/tasks/exit") })
	remove(t.Context(), a, id)
	start(t, a, id, nil, "workload", "count")
}
