package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/runc"
)

// TestBadKilledRestore kills runc and CRIU at random moments of a restore, while the shim lives: nothing is left, and the name can be used again, by
// the stock runtime as well.
func TestBadKilledRestore(t *testing.T) {
	a, _ := pair(t)
	t.Run("as the machine", func(t *testing.T) {
		killRestores(t, a, snapshotOf(t, a, "count", "--memory", "128"), func(id string) {
			must(t, a.Ctr(t.Context(), "run", "--detach", shared.image, id, "workload", "count"))
		})
	})
	t.Run("cgroup v2", func(t *testing.T) { // without limits, see TestCgroup2
		h, id := newHost(t, "killed", lab.HostOptions{Unified: true}), name(t)
		start := func(id string) {
			task := created(t, h, id, cryoRuntime, nil, cio.NullIO, []oci.SpecOpts{oci.WithoutRunMount}, "workload", "count", "--memory", "128")
			if err := task.Start(inDefault(t)); err != nil {
				t.Fatal(err)
			}
			counts(t, h, id)
		}
		start(id)
		ref := "killed/" + id + ":1"
		must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
		remove(t.Context(), h, id)
		killRestores(t, h, ref, start)
	})
}

// killRestores kills restores of a snapshot on a host. start starts a container of its own.
func killRestores(t *testing.T, h *lab.Host, ref string, start func(id string)) {
	for victim, test := range map[string]struct {
		is    func(process) bool
		known bool // when runc has written down the container
		begun bool // when CRIU has made the container's first process, and it alone
	}{"runc": {is: called("runc")}, "runc that knows the container": {is: called("runc"), known: true}, "criu": {is: called("criu")}, "criu alone": {begun: true}} {
		t.Run(victim, func(t *testing.T) {
			id := name(t)
			state := filepath.Join(h.Dir, "run/containerd/runc/default", id, "state.json")
			before := trace(t, h)
			restore := []string{"restore", ref, "--name", id, "--eager"}
			hits := 0
			for range breaks {
				ended := make(chan lab.Result, 1)
				go func() { ended <- h.Cryo(t.Context(), restore...) }()
				criu := find(t, h, dumping(h))
				if criu == 0 {
					t.Fatalf("no restore: %v", <-ended)
				}
				if test.begun {
					killAlone(t, h, criu)
				} else if test.known {
					for deadline := time.Now().Add(5 * time.Second); !there(state) && time.Now().Before(deadline); {
						time.Sleep(100 * time.Microsecond)
					}
				} else {
					time.Sleep(time.Duration(rand.Int64N(int64(120 * time.Millisecond))))
				}
				for _, p := range processes(t, h) {
					if test.is != nil && test.is(p) {
						kill(t, p.pid)
					}
				}
				r := <-ended
				if r.Code == 0 {
					counts(t, h, id)
					remove(t.Context(), h, id)
				} else {
					hits++
				}
				if r.Elapsed > 30*time.Second {
					t.Errorf("it took %s: %s", r.Elapsed, r.Stderr)
				}
				wantTrace(t, h, before)
			}
			if hits == 0 {
				t.Errorf("none of %d restores was killed", breaks)
			}
			t.Logf("%d of %d restores were killed", hits, breaks)
			must(t, h.Cryo(t.Context(), restore...))
			counts(t, h, id)
			remove(t.Context(), h, id)
			start(id)
			remove(t.Context(), h, id)
			wantTrace(t, h, before)
		})
	}
}

// killAlone kills CRIU when its container's first process is there, which has its name and its log, and is a child of runc as well.
func killAlone(t *testing.T, h *lab.Host, criu int) {
	t.Helper()
	parent, err := runc.Parent(criu)
	if err != nil {
		return // it has ended
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		for _, p := range processes(t, h) {
			if up, err := runc.Parent(p.pid); p.pid != criu && err == nil && up == parent && p.command == "criu" {
				kill(t, criu)
				return
			}
		}
	}
}

// TestBadKilledAgain kills the shim of a restore, and gives the same command again at once, while containerd clears away what the shim has left.
func TestBadKilledAgain(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "128")
	hits := 0
	for range breaks {
		id := name(t)
		restore := []string{"restore", ref, "--name", id, "--eager"}
		ended := make(chan lab.Result, 1)
		go func() { ended <- a.Cryo(t.Context(), restore...) }()
		if find(t, a, dumping(a)) == 0 {
			t.Fatalf("no restore: %v", <-ended)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(60 * time.Millisecond))))
		for _, p := range processes(t, a) {
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid)); bytes.Contains(line, []byte("\x00-id\x00"+id+"\x00")) {
				kill(t, p.pid)
			}
		}
		clears := func(p process) bool {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
			return bytes.Contains(line, []byte("\x00"+id+"\x00")) && bytes.HasSuffix(line, []byte("\x00delete\x00"))
		}
		if clearing := find(t, a, clears); clearing != 0 && syscall.Kill(clearing, syscall.SIGSTOP) == nil {
			time.AfterFunc(time.Second, func() { _ = syscall.Kill(clearing, syscall.SIGCONT) })
		}
		if r := <-ended; r.Code == 0 {
			remove(t.Context(), a, id)
			continue
		}
		hits++
		must(t, a.Cryo(t.Context(), restore...))
		counts(t, a, id)
		remove(t.Context(), a, id)
	}
	t.Logf("%d of %d restores were killed", hits, breaks)
	if hits == 0 {
		t.Errorf("none of %d restores was killed", breaks)
	}
}

// TestBadKilledFill kills what fills in memory before it has filled in any, when runc has written down the container: the restore fails, says so, and
// leaves nothing.
func TestBadKilledFill(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "64")
	before := trace(t, a)
	for range breaks {
		id := name(t)
		ended := make(chan lab.Result, 1)
		go func() { ended <- a.Cryo(t.Context(), "restore", ref, "--name", id) }()
		if find(t, a, isRestoring) == 0 {
			t.Fatal("no restore")
		}
		fill := restorerOf(t, a)
		if err := syscall.Kill(fill, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		state := filepath.Join(a.Dir, "run/containerd/runc/default", id, "state.json")
		for deadline := time.Now().Add(3 * time.Second); !there(state) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(300 * time.Millisecond))))
		kill(t, fill)
		select {
		case r := <-ended:
			if r.Code == 0 {
				t.Error("it is restored without its memory")
			}
		case <-time.After(time.Minute):
			t.Fatal("the restore hangs")
		}
		wantTrace(t, a, before)
	}
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
