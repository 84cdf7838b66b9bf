package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestShimOptions has each kind of options reach runc: its state is where they say.
func TestShimOptions(t *testing.T) {
	a, _ := pair(t)
	root := filepath.Join(a.Dir, "runc-root")
	for _, test := range []struct {
		kind    string
		options any
		root    string
	}{
		{"none", nil, filepath.Join(a.Dir, "run/containerd/runc")},
		{"runc", &runcoptions.Options{Root: root}, root},
		{"cri", &runtimeoptions.Options{ConfigBody: fmt.Appendf(nil, "Root = %q\n", root)}, root},
	} {
		t.Run(test.kind, func(t *testing.T) {
			id := name(t)
			task := created(t, a, id, cryoRuntime, test.options, cio.NullIO, nil, "workload", "count")
			if err := task.Start(inDefault(t)); err != nil {
				t.Fatal(err)
			}
			await(t, a, id)
			if _, err := os.Stat(filepath.Join(test.root, "default", id, "state.json")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestShimPod has two containers of one pod under one shim, which outlives the first and not the second.
func TestShimPod(t *testing.T) {
	a, _ := pair(t)
	for _, label := range []string{"io.kubernetes.cri.sandbox-id", "io.containerd.runc.v2.group"} {
		t.Run(label, func(t *testing.T) {
			one, two, other := name(t), name(t), name(t)
			start(t, a, one, []string{"--annotation", label + "=" + one}, "workload", "count")
			start(t, a, two, []string{"--annotation", label + "=" + one}, "workload", "count")
			start(t, a, other, nil, "workload", "count")
			shim := shimOf(t, a, one)
			if shimOf(t, a, two) != shim {
				t.Error("two containers of a pod have two shims")
			}
			if shimOf(t, a, other) == shim {
				t.Error("a container outside of the pod has the pod's shim")
			}
			remove(t.Context(), a, two)
			await(t, a, one)
			remove(t.Context(), a, one)
			eventually(t, "shim's end", 30*time.Second, func() bool { return syscall.Kill(shim, 0) != nil })
		})
	}
}

// TestShimDaemonRestart has containers outlive containerd, and an end in its absence be known after it.
func TestShimDaemonRestart(t *testing.T) {
	h := newHost(t, "restart", lab.HostOptions{})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			stays, ends := name(t), name(t)
			start(t, h, stays, nil, "workload", "count")
			start(t, h, ends, nil, "workload", "count")
			before := await(t, h, stays)
			pid, _, err := h.Task(t.Context(), ends)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.StopDaemon(signal); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := h.StartDaemon(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := await(t, h, stays); after.Count < before.Count {
				t.Errorf("counted from %d to %d", before.Count, after.Count)
			}
			must(t, h.Ctr(t.Context(), "tasks", "exec", "--exec-id", "x", stays, "true"))
			// containerd clears away shims that it finds without a process.
			if _, status, err := h.Task(t.Context(), ends); status == "RUNNING" || err != nil {
				t.Errorf("the one that ended meanwhile is %q (%v)", status, err)
			}
			must(t, h.Ctr(t.Context(), "tasks", "kill", stays))
			eventually(t, "end", 30*time.Second, func() bool {
				_, status, err := h.Task(t.Context(), stays)
				return err == nil && status == "STOPPED"
			})
		})
	}
}

// TestShimAbout has the shim say what it is.
func TestShimAbout(t *testing.T) {
	a, _ := pair(t)
	if r := must(t, a.Run(t.Context(), "containerd-shim-cryo-v1", "-v")); !strings.Contains(r.Stdout, "Version:") {
		t.Errorf("-v says %q", r.Stdout)
	}
	r := must(t, a.Ctr(t.Context(), "plugins", "inspect-runtime", "--runtime", cryoRuntime))
	for _, want := range []string{cryoRuntime, "Features", "ociVersionMin"} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("-info does not say %q:\n%s", want, r.Stdout)
		}
	}
}

// shimOf is the process id of a task's shim, which is its parent.
func shimOf(t *testing.T, h *lab.Host, id string) int {
	t.Helper()
	pid, status, err := h.Task(t.Context(), id)
	if err != nil || pid == 0 {
		t.Fatalf("task %s is %q, pid %d (%v)", id, status, pid, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The second field, in brackets, may hold anything; the parent is the second after it, see proc_pid_stat(5).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))
	parent, err := strconv.Atoi(fields[2])
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

// executable is the program a process runs.
func executable(t *testing.T, pid int) string {
	t.Helper()
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		t.Fatal(err)
	}
	return path
}
