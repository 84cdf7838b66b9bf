package shim

import (
	"context"
	"sync"
)

// gate lets either one checkpoint or any number of short operations at a container at a time.
type gate struct {
	mu       sync.Mutex
	short    int           // operations inside, guarded by mu
	closed   chan struct{} // not nil while a checkpoint holds the gate or waits for it, closed when it leaves; guarded by mu
	emptied  chan struct{} // not nil while a checkpoint waits for short operations to end; guarded by mu
	released bool          // closed, and only another checkpoint has to stay outside; guarded by mu
	abort    context.CancelCauseFunc
}

// enter waits until no checkpoint needs the container.
func (g *gate) enter(ctx context.Context) error {
	for {
		g.mu.Lock()
		wait := g.closed
		if wait == nil || g.released {
			g.short++
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
		if err := until(ctx, wait); err != nil {
			return err
		}
	}
}

func until(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release is for a checkpoint that does not need the container any more and is not over yet.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.released = true
	close(g.closed)
	g.closed = make(chan struct{})
}

// settle breaks off a checkpoint that does not need the container any more, and waits until it is over.
func (g *gate) settle(ctx context.Context, cause error) error {
	g.mu.Lock()
	wait := g.closed
	if !g.released {
		wait = nil
	} else {
		g.abort(cause)
	}
	g.mu.Unlock()
	if wait == nil {
		return nil
	}
	return until(ctx, wait)
}

// leave ends a short operation.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.short--
	if g.short == 0 && g.emptied != nil {
		close(g.emptied)
		g.emptied = nil
	}
}

// close takes the gate for a checkpoint; false if another one has it. The context it returns is cancelled by cancel.
func (g *gate) close(ctx context.Context) (_ context.Context, open func(), ok bool, err error) {
	ctx, abort := context.WithCancelCause(ctx)
	g.mu.Lock()
	if g.closed != nil {
		g.mu.Unlock()
		abort(nil)
		return nil, nil, false, nil
	}
	g.closed, g.abort = make(chan struct{}), abort
	var emptied chan struct{}
	if g.short > 0 {
		emptied = make(chan struct{})
		g.emptied = emptied
	}
	g.mu.Unlock()
	open = func() {
		g.mu.Lock()
		close(g.closed)
		g.closed, g.abort, g.emptied, g.released = nil, nil, nil, false
		g.mu.Unlock()
		abort(nil)
	}
	if emptied != nil {
		select {
		case <-emptied:
		case <-ctx.Done():
			open()
			return nil, nil, false, context.Cause(ctx)
		}
	}
	return ctx, open, true, nil
}

// await takes the gate as close does, but waits until nobody else has it.
func (g *gate) await(ctx context.Context) (_ context.Context, open func(), err error) {
	for {
		inner, open, ok, err := g.close(ctx)
		if ok || err != nil {
			return inner, open, err
		}
		g.mu.Lock()
		wait := g.closed
		g.mu.Unlock()
		if wait == nil {
			continue
		}
		if err := until(ctx, wait); err != nil {
			return nil, nil, err
		}
	}
}

// cancel aborts the checkpoint that is under way, and tells whether there is one.
func (g *gate) cancel(cause error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.abort == nil {
		return false
	}
	g.abort(cause)
	return true
}
