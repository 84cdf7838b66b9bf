package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// ipcPod is a pod whose containers share an IPC namespace.
type ipcPod struct {
	t     *testing.T
	h     *lab.Host
	flags []string
	ns    string // the namespace
}

func newIPCPod(t *testing.T, h *lab.Host) ipcPod {
	t.Helper()
	flags := newPod(t, h, name(t))
	n := slices.IndexFunc(flags, func(f string) bool { return strings.HasPrefix(f, "ipc:") })
	return ipcPod{t, h, flags, strings.TrimPrefix(flags[n], "ipc:")}
}

// run runs a program of the host's in the namespace, and gives what it prints.
func (p ipcPod) run(args ...string) string {
	p.t.Helper()
	return must(p.t, p.h.Run(p.t.Context(), append([]string{"nsenter", "--ipc=" + p.ns}, args...)...)).Stdout
}

// objects counts the System V objects.
func (p ipcPod) objects() int {
	return strings.Count(p.run("cat", "/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"), "\n") - 3
}

// TestIPC restores a container with System V objects into pods in which another container has such objects, a POSIX queue and sysctls. All of these must stay as they are. If an object has the
// id or key of one in the snapshot, the restore is refused, or the container is started. If CRIU fails, no object is left.
func TestIPC(t *testing.T) {
	h := annotationHost(t, "ipc", shared.registry.Address)
	from, id := newIPCPod(t, h), name(t)
	full, empty := filepath.Join(h.Dir, "full"), filepath.Join(h.Dir, "empty")
	for _, dir := range []string{filepath.Join(full, "here"), empty} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	working := func(dir string) []string {
		return []string{"--mount", "type=bind,src=" + dir + ",dst=/data,options=rbind:rw", "--cwd", "/data/here"}
	}
	args := []string{"workload", "ipc", "--key", "1"}
	start(t, h, id, slices.Concat(from.flags, working(full)), args...)
	before := await(t, h, id)
	ref := shared.registry.Reference("ipc/" + id + ":1")
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	remove(t.Context(), h, id)
	if n := from.objects(); n != 3 {
		t.Errorf("the pod has %d objects", n)
	}
	neighbour := func(p ipcPod) (unharmed func()) {
		id := name(t)
		start(t, h, id, p.flags, "workload", "ipc", "--key", "2")
		must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "queue", id, "touch", "/dev/mqueue/queue"))
		p.run("sh", "-c", "echo 222222 > /proc/sys/kernel/shmmax; echo 22 > /proc/sys/fs/mqueue/queues_max")
		was := await(t, h, id)
		return func() {
			t.Helper()
			goneOn(t, was, await(t, h, id))
			if now := p.run("cat", "/proc/sys/kernel/shmmax", "/proc/sys/fs/mqueue/queues_max"); now != "222222\n22\n" {
				t.Errorf("the pod's sysctls are %q", now)
			}
			if r := must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "look", id, "ls", "/dev/mqueue")); r.Stdout != "queue\n" {
				t.Errorf("the pod's queues are %q", r.Stdout)
			}
			remove(t.Context(), h, id)
		}
	}
	fails := func(t *testing.T, flags []string, says string) {
		t.Helper()
		id := name(t)
		if r := runFrom(t, h, id, ref, flags, args...); r.Code == 0 || !strings.Contains(r.Stderr, says) {
			t.Errorf("exit status %d: %s", r.Code, r.Stderr)
		}
		remove(t.Context(), h, id)
	}
	t.Run("beside others", func(t *testing.T) {
		p := newIPCPod(t, h)
		first := name(t)
		start(t, h, first, p.flags, "workload", "ipc", "--key", "3")
		unharmed := neighbour(p)
		remove(t.Context(), h, first)
		p.run("ipcrm", "-M", "3", "-Q", "3", "-S", "3")
		id := name(t)
		must(t, runFrom(t, h, id, ref, slices.Concat(p.flags, working(full)), args...))
		goneOn(t, before, await(t, h, id))
		unharmed()
		remove(t.Context(), h, id)
	})
	t.Run("refused", func(t *testing.T) {
		p := newIPCPod(t, h)
		unharmed := neighbour(p)
		flags := slices.Concat(p.flags, working(full))
		fails(t, flags, "ipc-objects: ")
		if n := p.objects(); n != 3 {
			t.Errorf("the pod has %d objects", n)
		}
		unharmed()
	})
	t.Run("CRIU fails", func(t *testing.T) {
		p := newIPCPod(t, h)
		flags := slices.Concat(p.flags, working(empty))
		fails(t, flags, "CRIU: ")
		if n := p.objects(); n != 0 {
			t.Errorf("%d objects are left", n)
		}
	})
}
