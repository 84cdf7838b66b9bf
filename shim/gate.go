package shim

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// gate lets either one checkpoint or any number of short operations at a container at a time.
type gate struct {
	once   sync.Once
	places *semaphore.Weighted // a short operation takes one, a checkpoint all

	mu    sync.Mutex
	under *passage // the checkpoint that is under way, or waits; nil: none. Guarded by mu
}

// passage is a checkpoint's way through the gate.
type passage struct {
	abort    context.CancelCauseFunc
	released bool          // it has no places any more, and only another checkpoint has to stay outside; guarded by the gate's mu
	over     chan struct{} // closed when it is over
}

// allPlaces is more than there are short operations.
const allPlaces = 1 << 30

func (g *gate) take(ctx context.Context, places int64) error {
	g.once.Do(func() { g.places = semaphore.NewWeighted(allPlaces) })
	if g.places.Acquire(ctx, places) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// enter waits until no checkpoint needs the container.
func (g *gate) enter(ctx context.Context) error { return g.take(ctx, 1) }

// leave ends a short operation.
func (g *gate) leave() { g.places.Release(1) }

func until(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close takes the gate for a checkpoint; false if another one has it. The context it returns is cancelled by cancel.
func (g *gate) close(ctx context.Context) (_ context.Context, open func(), ok bool, err error) {
	ctx, abort := context.WithCancelCause(ctx)
	own := &passage{abort: abort, over: make(chan struct{})}
	g.mu.Lock()
	if g.under != nil {
		g.mu.Unlock()
		abort(nil)
		return nil, nil, false, nil
	}
	g.under = own
	g.mu.Unlock()
	if err := g.take(ctx, allPlaces); err != nil {
		g.end(own)
		return nil, nil, false, err
	}
	return ctx, func() { g.release(); g.end(own) }, true, nil
}

// release is for a checkpoint that does not need the container any more and is not over yet.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.under.released {
		g.under.released = true
		g.places.Release(allPlaces)
	}
}

// end says that a checkpoint is over.
func (g *gate) end(own *passage) {
	g.mu.Lock()
	g.under = nil
	g.mu.Unlock()
	close(own.over)
	own.abort(nil)
}

// settle breaks off a checkpoint that does not need the container any more, and waits until it is over.
func (g *gate) settle(ctx context.Context, cause error) error {
	g.mu.Lock()
	own := g.under
	released := own != nil && own.released
	g.mu.Unlock()
	if !released {
		return nil
	}
	own.abort(cause)
	return until(ctx, own.over)
}

// await takes the gate as close does, but waits until nobody else has it.
func (g *gate) await(ctx context.Context) (_ context.Context, open func(), err error) {
	for {
		inner, open, ok, err := g.close(ctx)
		if ok || err != nil {
			return inner, open, err
		}
		g.mu.Lock()
		other := g.under
		g.mu.Unlock()
		if other == nil {
			continue
		}
		if err := until(ctx, other.over); err != nil {
			return nil, nil, err
		}
	}
}

// cancel aborts the checkpoint that is under way, and tells whether there is one.
func (g *gate) cancel(cause error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.under == nil {
		return false
	}
	g.under.abort(cause)
	return true
}
