package restore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
)

// away says since when a registry has brought nothing to a container that runs.
type away struct {
	mu      sync.Mutex
	running bool      // guarded by mu
	failed  error     // why the pull has failed before; nil: it has not; guarded by mu
	since   time.Time // zero: it brings something; guarded by mu
	moved   int64     // bytes that had come by then; guarded by mu
	reason  string    // guarded by mu
}

// A registry that is away is left alone for as long as it has been away, within these bounds. Meanwhile another process may bring the segments into the store.
const (
	awayLeast = 50 * time.Millisecond
	awayPause = time.Second
)

// beginPatience is how long a registry may be away before the container runs: long enough for one bad answer. Then the restore is undone.
const beginPatience = 3 * time.Second

// startPatience is how long a registry may be away while the container's processes are there and their GPUs are not ready: then the restore is undone, and nothing is lost.
const startPatience = 10 * time.Second

// begin lets the container run. An error is that of the pull, which has failed before.
func (a *away) begin() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = a.failed == nil
	return a.failed
}

// fails reports whether err ends the pull: it does unless the container runs.
func (a *away) fails(err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.running {
		a.failed = err
	}
	return !a.running
}

// found notes that the registry is away for that reason, moved bytes having come from it by now, and tells for how long it has been.
func (a *away) found(reason error, moved int64) (since time.Duration, running bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() || moved > a.moved {
		a.since = time.Now()
	}
	a.moved, a.reason = moved, reason.Error()
	return time.Since(a.since), a.running
}

// waiting returns what the container's memory waits for, moved bytes having come by now; empty: for nothing but the line.
func (a *away) waiting(moved int64) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() || moved > a.moved {
		a.since = time.Time{}
		return ""
	}
	return a.reason
}

// wait waits a moment, and reports whether to ask again. Whatever the registry has answered, it may answer something else the next time: err
// does not matter. Memory that turns out to be wrong is asked for again by its reader, a few times.
func (c *lazyPull) wait(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	since, running := c.away.found(err, c.counts.Moved())
	if !running && since > beginPatience {
		return false
	}
	if running && !c.runs.Load() && since > startPatience {
		c.cancel(err)
		return false
	}
	if running && since > c.patience {
		c.cancel(failure.New(errdefs.ErrUnavailable, "raise registry-timeout under [restore] in the configuration, where the registry may be away for longer", "the registry has brought nothing for %s: %v", c.patience, err))
		return false
	}
	pause := min(max(since, awayLeast), awayPause)
	if errdefs.IsDataLoss(err) && !errors.As(err, new(*registry.AnswerError)) {
		pause = awayPause // what has come is wrong
	}
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// waiting returns what the container's memory waits for; empty: for nothing but the line.
func (c *lazyPull) waiting() string {
	if c == nil {
		return ""
	}
	return c.away.waiting(c.counts.Moved())
}
