package restore

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// away says since when a registry has brought nothing to a container that runs.
type away struct {
	mu      sync.Mutex
	running bool      // guarded by mu
	since   time.Time // zero: it brings something; guarded by mu
	moved   int64     // bytes that had come by then; guarded by mu
	reason  string    // guarded by mu
}

// awayPause is how long a registry that is away is left alone. Meanwhile another process may bring the segments into the store.
const awayPause = time.Second

// begin says that the container runs.
func (a *away) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = true
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

// waiting says what the container's memory waits for, moved bytes having come by now; empty: for nothing but the line.
func (a *away) waiting(moved int64) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() || moved > a.moved {
		a.since = time.Time{}
		return ""
	}
	return a.reason
}

// wait waits a moment if the registry is away and the container runs, and tells whether to ask again.
func (c *lazyPull) wait(ctx context.Context, err error) bool {
	if !errdefs.IsUnavailable(err) {
		return false
	}
	since, running := c.away.found(err, c.counts.Moved())
	if !running {
		return false
	}
	if since > c.patience {
		c.cancel(failure.New(errdefs.ErrUnavailable, "raise registry-timeout under [restore] in the configuration, where the registry may be away for longer", "the registry has brought nothing for %s: %v", c.patience, err))
		return false
	}
	select {
	case <-time.After(awayPause):
		return true
	case <-ctx.Done():
		return false
	}
}

// waiting says what the container's memory waits for; empty: for nothing but the line.
func (c *lazyPull) waiting() string {
	if c == nil {
		return ""
	}
	return c.away.waiting(c.counts.Moved())
}
