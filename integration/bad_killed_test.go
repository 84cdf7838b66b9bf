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

// duringDump starts a checkpoint that leaves a container running, calls do once CRIU is at work, and gives the result.
func duringDump(t *testing.T, h *lab.Host, id, ref string, do func(criu int), flags ...string) lab.Result {
	t.Helper()
	ended := make(chan lab.Result, 1)
	go func() {
		ended <- h.Cryo(t.Context(), append([]string{"checkpoint", id, ref, "--leave-running"}, flags...)...)
	}()
	criu := find(t, h, dumping(h))
	if criu == 0 {
		t.Fatalf("no dump: %v", <-ended)
	}
	do(criu)
	select {
	case r := <-ended:
		return r
	case <-time.After(2 * time.Minute):
		t.Fatal("the checkpoint hangs")
		return lab.Result{}
	}
}

// TestBadKilledDump kills CRIU or runc some times at random moments of a dump: the container runs on, with its network, or is reported lost.
func TestBadKilledDump(t *testing.T) {
	a, _ := pair(t)
	t.Run("iptables", func(t *testing.T) { killDumps(t, a) })
	// CRIU takes this from a file of the user's, which comes after all else.
	conf := filepath.Join(t.TempDir(), "criu.conf")
	if err := os.WriteFile(conf, []byte("network-lock nftables\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("nftables", func(t *testing.T) { killDumps(t, a, "--annotation", "org.criu.config="+conf) })
}

func killDumps(t *testing.T, a *lab.Host, flags ...string) {
	id, ref := name(t), "bad/killed:1"
	again := func() { start(t, a, id, flags, "workload", "count", "--memory", "256") }
	none := trace(t, a)
	again()
	forget(t, a, ref)
	for victim, is := range map[string]func(process) bool{"criu": dumping(a), "runc": called("runc")} {
		t.Run(victim, func(t *testing.T) {
			before := trace(t, a)
			hits := 0
			for range breaks {
				wait := time.Duration(rand.Int64N(int64(250 * time.Millisecond)))
				r := duringDump(t, a, id, ref, func(int) {
					time.Sleep(wait)
					if pid := find(t, a, is); pid != 0 {
						kill(t, pid)
					}
				})
				switch r.Code {
				case 0:
				case codeLost: // CRIU's code was entering or leaving a process, for which there is no help
					t.Log(r.Stderr)
					remove(t.Context(), a, id)
					wantTrace(t, a, none)
					again()
					before = trace(t, a)
				default:
					hits++
					refusal(t, r, codeAborted, "the container runs on")
				}
				counts(t, a, id)
				a.Cryo(t.Context(), "rm", ref)
				wantTrace(t, a, before)
				if t.Failed() {
					t.Fatalf("killed %s after %s", victim, wait)
				}
			}
			t.Logf("%d of %d dumps were hit", hits, breaks)
			if hits == 0 {
				t.Error("no dump was hit")
			}
		})
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
}

// TestBadKilledShim kills the shim during a dump: the container is lost, is reported so, and nothing of it is left.
func TestBadKilledShim(t *testing.T) {
	a, _ := pair(t)
	before := trace(t, a)
	for range 3 {
		id, ref := name(t), "bad/killed:2"
		start(t, a, id, nil, "workload", "count", "--memory", "128")
		shim := find(t, a, called("containerd-shim"))
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
	kill(t, find(t, a, called("containerd-shim")))
	if err := slow.Wait(); err != nil {
		t.Error(err)
	}
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), restore...))
	counts(t, a, id)
	remove(t.Context(), a, id)
	wantTrace(t, a, before)
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
