package taker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// served runs the process's side, and gives the shim's end.
func served(t *testing.T, do func(context.Context, Request) (*Snapshot, []string, error)) (_ *channel.Channel, ended chan error) {
	t.Helper()
	own, other, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	fd, err := unix.Dup(int(other.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	ended = make(chan error, 1)
	go func() { ended <- Serve(t.Context(), fd, do) }()
	return own, ended
}

// TestServe has the process answer with a snapshot, and with an error.
func TestServe(t *testing.T) {
	for _, failed := range []error{nil, failure.New(errdefs.ErrPermissionDenied, "do this", "it may not be")} {
		own, ended := served(t, func(_ context.Context, r Request) (*Snapshot, []string, error) {
			if failed != nil {
				return nil, []string{"look"}, failed
			}
			return &Snapshot{Reference: r.To}, []string{"look"}, nil
		})
		if err := own.Send(Request{Protocol: protocol, To: "registry.example.com/a:1"}); err != nil {
			t.Fatal(err)
		}
		var a answer
		if _, err := own.Receive(&a); err != nil {
			t.Fatal(err)
		}
		if len(a.Warnings) != 1 || (failed == nil) != (a.Snapshot != nil) {
			t.Errorf("got %+v", a)
		}
		if failed != nil && (!errors.Is(a.Failed, errdefs.ErrPermissionDenied) || a.Failed.Hint() != "do this") {
			t.Errorf("got %v", a.Failed)
		}
		if err := <-ended; !errors.Is(err, failed) {
			t.Errorf("it ended with %v", err)
		}
	}
}

// TestServeHangsUp has the shim not wait any more: it hears when what was begun is undone.
func TestServeHangsUp(t *testing.T) {
	own, ended := served(t, func(ctx context.Context, _ Request) (*Snapshot, []string, error) {
		<-ctx.Done()
		return nil, nil, context.Cause(ctx)
	})
	if err := own.Send(Request{Protocol: protocol}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if err := own.HangUp(); err != nil {
		t.Fatal(err)
	}
	var a answer
	if _, err := own.Receive(&a); err != nil || !errors.Is(a.Failed, context.Canceled) {
		t.Errorf("got %+v, %v", a, err)
	}
	<-ended
}

// TestServeVersion refuses a shim of another build.
func TestServeVersion(t *testing.T) {
	own, ended := served(t, func(context.Context, Request) (*Snapshot, []string, error) {
		t.Error("it was done")
		return nil, nil, nil
	})
	if err := own.Send(Request{Protocol: protocol + 1}); err != nil {
		t.Fatal(err)
	}
	var a answer
	if _, err := own.Receive(&a); err != nil || !errdefs.IsFailedPrecondition(a.Failed) {
		t.Errorf("got %+v, %v", a, err)
	}
	<-ended
}
