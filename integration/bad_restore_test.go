package integration

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadKilledRestore kills runc and CRIU at random moments of a restore, while the shim lives: nothing is left, and the name can be used again, by
// the stock runtime as well.
func TestBadKilledRestore(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "128")
	for victim, is := range map[string]func(process) bool{"runc": called("runc"), "criu": dumping(a)} {
		t.Run(victim, func(t *testing.T) {
			id := name(t)
			before := trace(t, a)
			restore := []string{"restore", ref, "--name", id, "--eager"}
			hits := 0
			for range breaks {
				ended := make(chan lab.Result, 1)
				go func() { ended <- a.Cryo(t.Context(), restore...) }()
				if find(t, a, dumping(a)) == 0 {
					t.Fatalf("no restore: %v", <-ended)
				}
				time.Sleep(time.Duration(rand.Int64N(int64(120 * time.Millisecond))))
				for _, p := range processes(t, a) {
					if is(p) {
						kill(t, p.pid)
					}
				}
				if r := <-ended; r.Code == 0 {
					counts(t, a, id)
					remove(t.Context(), a, id)
				} else {
					hits++
				}
				wantTrace(t, a, before)
			}
			t.Logf("%d of %d restores were killed", hits, breaks)
			must(t, a.Cryo(t.Context(), restore...))
			counts(t, a, id)
			remove(t.Context(), a, id)
			must(t, a.Ctr(t.Context(), "run", "--detach", shared.image, id, "workload", "count"))
			remove(t.Context(), a, id)
			wantTrace(t, a, before)
		})
	}
}
