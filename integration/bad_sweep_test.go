package integration

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadSweep kills the command while CRIU restores. Its shim sweeps, without another command: nothing is left, or a container that is whole, runs, and is
// nobody's half-made one any more.
func TestBadSweep(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "64")
	id := name(t)
	before := trace(t, a)
	for range breaks {
		ended := make(chan lab.Result, 1)
		c := a.Command(t.Context(), "cryo", "restore", ref, "--name", id, "--eager")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = c.Wait()
			ended <- lab.Result{}
		}()
		if find(t, a, dumping(a)) == 0 {
			t.Fatal("no restore")
		}
		time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
		kill(t, c.Process.Pid)
		<-ended
		swept := func() bool {
			work, err := os.ReadDir(filepath.Join(a.CryoRoot(), "work"))
			return err == nil && len(work) == 0
		}
		eventually(t, "sweeping", 20*time.Second, swept)
		if _, status, err := a.Task(t.Context(), id); err == nil && status == "RUNNING" {
			counts(t, a, id)
			remove(t.Context(), a, id)
		}
		wantTrace(t, a, before)
	}
}
