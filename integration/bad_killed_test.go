package integration

import (
	"math/rand/v2"
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
