package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadStateGone removes the bundles of a host's containers, as where an operator removes a part of containerd's state directory. A running container stays, whatever is
// done by its name, and a task that containerd still knows can be removed at once.
func TestBadStateGone(t *testing.T) {
	h := newHost(t, "state", lab.HostOptions{})
	ref := "bad/state:1"
	seed := name(t)
	start(t, h, seed, nil, "workload", "count", "--memory", "4")
	must(t, h.Cryo(t.Context(), "checkpoint", seed, ref))
	remove(t.Context(), h, seed)
	forget(t, h, ref)
	// containerd removes the work directories of tasks when it starts, by its bundles, which are gone here. The socket of a shim that was killed stays.
	work := filepath.Join(h.Dir, "containerd/io.containerd.runtime.v2.task/default")
	sockets := filepath.Join(h.Dir, "run/containerd/s")
	t.Cleanup(func() { _ = errors.Join(os.RemoveAll(work), os.RemoveAll(sockets)) })
	bundles := "/run/containerd/io.containerd.runtime.v2.task/default"
	wipe := func(t *testing.T) {
		t.Helper()
		must(t, h.Run(t.Context(), "sh", "-c", "umount -l "+bundles+"/*/rootfs; rm -rf --one-file-system "+bundles+"/*"))
	}
	nothing := func(t *testing.T, id string) {
		t.Helper()
		for _, kind := range []string{"tasks", "containers"} {
			if out := must(t, h.Ctr(t.Context(), kind, "ls", "-q")).Stdout; strings.Contains(out, id) {
				t.Errorf("%s: %s is left", kind, id)
			}
		}
	}

	t.Run("restoring", func(t *testing.T) {
		id := name(t)
		cleanup(t, h, id)
		c := h.Command(t.Context(), "cryo", "restore", ref, "--name", id, "--eager")
		began := time.Now()
		r := lab.Follow(c, func() {
			criu := find(t, h, dumping(h))
			if criu == 0 {
				t.Error("no restore")
				return
			}
			_ = unix.Kill(criu, unix.SIGSTOP)
			wipe(t)
			_ = unix.Kill(criu, unix.SIGKILL)
		})
		if r.Code == 0 || time.Since(began) > 15*time.Second {
			t.Errorf("exit %d after %s:\n%s", r.Code, time.Since(began), r.Stderr)
		}
		nothing(t, id)
		must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
		counts(t, h, id)
	})
	t.Run("running", func(t *testing.T) {
		id := name(t)
		cleanup(t, h, id)
		must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
		wipe(t)
		must(t, h.Ctr(t.Context(), "tasks", "kill", "--signal", "KILL", id))
		eventually(t, "removing the task", 10*time.Second, func() bool {
			h.Ctr(t.Context(), "tasks", "delete", id)
			_, status, err := h.Task(t.Context(), id)
			return err == nil && status == ""
		})
		must(t, h.Ctr(t.Context(), "containers", "delete", id))
	})
	t.Run("unknown", func(t *testing.T) {
		id := name(t)
		cleanup(t, h, id)
		must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
		pid, _, err := h.Task(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		shim := shimOf(t, h, id)
		if err := h.StopDaemon(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		wipe(t)
		if err := h.StartDaemon(t.Context()); err != nil {
			t.Fatal(err)
		}
		must(t, h.Ctr(t.Context(), "containers", "delete", id))
		r := h.Cryo(t.Context(), "restore", ref, "--name", id)
		if r.Code != codeExists || !strings.Contains(r.Stderr, "containerd does not know any more") || !strings.Contains(r.Stderr, "hint: choose another name (cryo restore --name), or end that container: runc --root") {
			t.Errorf("restore: exit %d\n%s", r.Code, r.Stderr)
		}
		if r.Elapsed > 15*time.Second {
			t.Errorf("the name is refused after %s", r.Elapsed)
		}
		nothing(t, id)
		if r := h.Ctr(t.Context(), "run", "--detach", "--null-io", "--runtime", cryoRuntime, lab.ImageName, id, "workload", "count"); r.Code == 0 {
			t.Error("a container of the same name runs")
		}
		h.Ctr(t.Context(), "containers", "delete", id)
		nothing(t, id)
		before := switches(t, pid)
		eventually(t, "the container runs on", 10*time.Second, func() bool { return switches(t, pid) > before })
		// As the hint says.
		must(t, h.Run(t.Context(), "runc", "--root", "/run/containerd/runc/default", "delete", "--force", id))
		kill(t, shim)
		must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
		counts(t, h, id)
	})
}

// switches returns how often the threads of a process have been switched to; the test fails if there is no such process.
func switches(t *testing.T, pid int) (n int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d has ended: %v", pid, err)
	}
	for _, file := range files {
		data, _ := os.ReadFile(file) // the thread may have ended
		for line := range strings.Lines(string(data)) {
			var more int
			if _, err := fmt.Sscanf(line, "voluntary_ctxt_switches: %d", &more); err == nil {
				n += more
			}
		}
	}
	return n
}
