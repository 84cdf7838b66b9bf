package registry

import (
	"context"
	"sync"
)

// turns bound how many segments are fetched side by side.
type turns struct {
	free chan struct{}
	kept int // that few has taken away; guarded by mu
	mu   sync.Mutex
}

func newTurns(n int) *turns {
	t := &turns{free: make(chan struct{}, n)}
	for range n {
		t.free <- struct{}{}
	}
	return t
}

// few leaves half of them, and is called before any is taken.
func (t *turns) few() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.kept < cap(t.free)/2 {
		<-t.free
		t.kept++
	}
}

// all gives back what few has taken.
func (t *turns) all() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; t.kept > 0; t.kept-- {
		t.free <- struct{}{}
	}
}

func (t *turns) take(ctx context.Context) error {
	select {
	case <-t.free:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *turns) give() { t.free <- struct{}{} }
