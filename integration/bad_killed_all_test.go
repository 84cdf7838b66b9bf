package integration

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadKilledDump kills CRIU or runc some times at random moments of a dump: the container runs on, with its network, or is reported lost.
func TestBadKilledDump(t *testing.T) {
	a, _ := pair(t)
	for _, lock := range []string{"iptables", "nftables"} {
		// CRIU takes this from a file of the user's, which comes after all else.
		conf := filepath.Join(t.TempDir(), "criu.conf")
		if err := os.WriteFile(conf, []byte("network-lock "+lock+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run(lock, func(t *testing.T) { killDumps(t, a, "--annotation", "org.criu.config="+conf) })
	}
}

// TestBadKilledShim kills the shim during a dump: the container is lost, is reported so, and nothing of it is left.
func TestBadKilledShim(t *testing.T) {
	a, _ := pair(t)
	before := trace(t, a)
	for range 3 {
		id, ref := name(t), "bad/killed:2"
		start(t, a, id, nil, "workload", "count", "--memory", "128")
		shim := find(t, a, runsShim(id))
		r := duringDump(t, a, id, ref, func(int) {
			time.Sleep(time.Duration(rand.Int64N(int64(150 * time.Millisecond))))
			kill(t, shim)
		})
		if r.Code != 0 {
			refusal(t, r, codeLost, "lost")
		}
		eventually(t, "end of the container", 30*time.Second, func() bool {
			_, status, err := a.Task(t.Context(), id)
			return err == nil && status != "RUNNING" && status != "PAUSED"
		})
		remove(t.Context(), a, id)
		a.Cryo(t.Context(), "rm", ref)
		wantTrace(t, a, before)
	}
}

// TestBadKilledDaemon kills containerd during a dump and starts it again: the container runs on.
func TestBadKilledDaemon(t *testing.T) {
	h := newHost(t, "bad-daemon", lab.HostOptions{})
	id, ref := name(t), "bad/killed:3"
	start(t, h, id, nil, "workload", "count", "--memory", "128")
	forget(t, h, ref)
	before := trace(t, h)
	r := duringDump(t, h, id, ref, func(int) {
		if err := h.StopDaemon(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
	refusal(t, r, codeUnavailable, "")
	if err := h.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts(t, h, id)
	swept(t, h)
	wantTrace(t, h, without(before, []string{""}, []string{"process "}), "process ")
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	counts(t, h, id)
}

// TestBadKilledShimBusy kills a shim while a process is slow to leave its container's cgroup, for which runc waits a third of a second: the name can be used again.
func TestBadKilledShimBusy(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "1")
	before := trace(t, a)
	restore := []string{"restore", ref, "--name", name(t)}
	id := restore[3]
	must(t, a.Cryo(t.Context(), restore...))
	groups, err := filepath.Glob(filepath.Join(a.CgroupRoot(), "*", id))
	if err != nil || len(groups) != 1 {
		t.Fatalf("cgroups of %s: %q, %v", id, groups, err)
	}
	slow := exec.Command("sleep", "2")
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(groups[0], "cgroup.procs"), []byte(strconv.Itoa(slow.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	kill(t, find(t, a, runsShim(id)))
	if err := slow.Wait(); err != nil {
		t.Error(err)
	}
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), restore...))
	counts(t, a, id)
	remove(t.Context(), a, id)
	wantTrace(t, a, before)
}
