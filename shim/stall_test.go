package shim

import (
	"path/filepath"
	"testing"
	"time"
)

// TestProgressAwaiting: a restore that waits for other members of its group counts as one that goes on, so that the watch does not end it.
func TestProgressAwaiting(t *testing.T) {
	c := &container{}
	log := filepath.Join(t.TempDir(), restoreLog)
	for _, awaiting := range []bool{false, true, false} {
		c.awaiting.Store(awaiting)
		before := c.progress(log, nil)
		time.Sleep(time.Millisecond)
		if after := c.progress(log, nil); (before != after) != awaiting {
			t.Errorf("while it awaits others (%v), its progress is %q and then %q", awaiting, before, after)
		}
	}
}
