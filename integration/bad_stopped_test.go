package integration

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/runc"
)

// stop stops the container's first process by a signal, and returns its id. It goes on at the end of the test.
func stop(t *testing.T, h *lab.Host, id string) int {
	t.Helper()
	pid, _, err := h.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is stopped", 5*time.Second, func() bool { return isStopped(pid) })
	return pid
}

func isStopped(pid int) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return strings.Contains(string(status), "T (stopped)")
}

// TestBadStopped takes a checkpoint of a stopped process. With cgroup v1, where CRIU would wait for it for ever, that is refused before anything is frozen, also to a stock client,
// which has frozen it already; with v2 it works.
func TestBadStopped(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "bad/stopped:1"
	start(t, a, id, nil, "workload", "count", "--memory", "8")
	if freezerOf(t, a, id) == "" {
		t.Skip("this machine has no cgroup v1")
	}
	counts(t, a, id)
	before := trace(t, a)
	pid := stop(t, a, id)
	began := time.Now()
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref), codePrecondition, "is stopped")
	if r := a.Cryo(t.Context(), "checkpoint", id, ref, "--json"); !strings.Contains(r.Stdout+r.Stderr, runc.RuleStopped+": ") || !strings.Contains(r.Stdout+r.Stderr, fmt.Sprintf("kill -CONT %d", pid)) {
		t.Errorf("no rule, or no hint: %s%s", r.Stdout, r.Stderr)
	}
	if r := a.Ctr(t.Context(), "containers", "checkpoint", "--task", id, ref); r.Code == 0 || !strings.Contains(r.Stderr, "is stopped") {
		t.Errorf("ctr: %d, %s", r.Code, r.Stderr)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	if frozen, err := runc.Frozen(pid); frozen || err != nil || !isStopped(pid) {
		t.Errorf("frozen: %v, %v", frozen, err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	counts(t, a, id)
	a.Ctr(t.Context(), "images", "rm", "--sync", ref)
	wantTrace(t, a, before)
}

// TestBadStoppedUnified takes a checkpoint of a stopped process with cgroup v2.
func TestBadStoppedUnified(t *testing.T) {
	h := newHost(t, "stopped-v2", lab.HostOptions{Unified: true})
	id, ref := name(t), "bad/stopped:2"
	task := created(t, h, id, cryoRuntime, nil, cio.NullIO, []oci.SpecOpts{oci.WithoutRunMount}, "workload", "count", "--memory", "8")
	if err := task.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
	counts(t, h, id)
	forget(t, h, ref)
	time.Sleep(300 * time.Millisecond) // CRIU does not take a connection that is not accepted yet
	pid := stop(t, h, id)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	if !isStopped(pid) {
		t.Error("it is not stopped any more")
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	counts(t, h, id)
}
