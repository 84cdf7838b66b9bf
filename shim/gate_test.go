package shim

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestGateLetsOneCheckpointIn(t *testing.T) {
	var g gate
	_, open, ok, err := g.close(t.Context())
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, _, ok, err := g.close(t.Context()); ok || err != nil {
		t.Errorf("a second checkpoint: %v, %v", ok, err)
	}
	open()
	_, open, ok, err = g.close(t.Context())
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	open()
}

func TestGateKeepsOrder(t *testing.T) {
	var g gate
	if err := g.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed := make(chan func())
	go func() {
		_, open, ok, err := g.close(context.Background())
		if !ok || err != nil {
			t.Error(ok, err)
		}
		closed <- open
	}()
	select {
	case <-closed:
		t.Fatal("a checkpoint began during an operation")
	case <-time.After(20 * time.Millisecond):
	}
	g.leave()
	open := <-closed
	entered := make(chan error)
	go func() { entered <- g.enter(context.Background()) }()
	select {
	case <-entered:
		t.Fatal("an operation began during a checkpoint")
	case <-time.After(20 * time.Millisecond):
	}
	open()
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
}

func TestGateWaitsAreCancelled(t *testing.T) {
	var g gate
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, open, _, _ := g.close(t.Context())
	if err := g.enter(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("enter: %v", err)
	}
	open()
	if err := g.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, ok, err := g.close(short); ok || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v, %v", ok, err)
	}
	g.leave()
	// The attempt that gave up must not have left the gate closed.
	if err := g.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.leave()
}

func TestGateCancelsTheCheckpoint(t *testing.T) {
	var g gate
	g.cancel(errKilled) // nobody there: nothing happens
	ctx, open, _, _ := g.close(t.Context())
	defer open()
	g.cancel(errKilled)
	if context.Cause(ctx) != errKilled {
		t.Errorf("cause %v", context.Cause(ctx))
	}
}

// TestGateReleased: a checkpoint that does not need the container any more keeps nothing out but another checkpoint, and ends for the sake of a
// deletion.
func TestGateReleased(t *testing.T) {
	var g gate
	ctx, open, _, _ := g.close(t.Context())
	entered := make(chan error)
	go func() { entered <- g.enter(context.Background()) }()
	g.release()
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	if _, _, ok, err := g.close(t.Context()); ok || err != nil {
		t.Errorf("a second checkpoint: %v, %v", ok, err)
	}
	waiting := make(chan func())
	go func() {
		_, open, err := g.await(context.Background())
		if err != nil {
			t.Error(err)
		}
		waiting <- open
	}()
	cause := errors.New("it is deleted")
	go func() {
		<-ctx.Done()
		if context.Cause(ctx) != cause {
			t.Errorf("it ends with %v", context.Cause(ctx))
		}
		open()
	}()
	if err := g.settle(t.Context(), cause); err != nil {
		t.Error(err)
	}
	g.leave()
	(<-waiting)()
	if err := g.settle(t.Context(), cause); err != nil {
		t.Errorf("with nothing to end: %v", err)
	}
	_, open, ok, err := g.close(t.Context())
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := g.settle(t.Context(), cause); err != nil {
		t.Errorf("of a checkpoint that needs the container: %v", err)
	}
	open()
}
