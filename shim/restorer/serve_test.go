package restorer

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// served is a restore process in this one, and the shim's end of its channel.
func served(t *testing.T, prepare func(ctx context.Context, r Request) (*Prepared, func() error, func(), error)) (shim *channel.Channel, ended chan error) {
	t.Helper()
	shim, other, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shim.Close() })
	fd, err := unix.Dup(int(other.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	ended = make(chan error, 1)
	go func() { ended <- Serve(fd, prepare) }()
	return shim, ended
}

// TestServe: what was prepared is let go whatever comes, and goes on when the container runs.
func TestServe(t *testing.T) {
	for _, runs := range []bool{true, false} {
		ran, let := false, false
		shim, ended := served(t, func(_ context.Context, r Request) (*Prepared, func() error, func(), error) {
			return &Prepared{Images: r.Ref}, func() error { ran = true; return nil }, func() { let = true }, nil
		})
		if err := shim.Send(Message{Request: &Request{Protocol: protocol, Ref: "r:1"}}); err != nil {
			t.Fatal(err)
		}
		var m Message
		if _, err := shim.Receive(&m); err != nil || m.Prepared == nil || m.Prepared.Images != "r:1" {
			t.Fatalf("%+v, %v", m, err)
		}
		if runs {
			if err := shim.Send(Message{Running: true}); err != nil {
				t.Fatal(err)
			}
		} else if err := shim.HangUp(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; runs != (err == nil) || !runs && !errors.Is(err, errGone) {
			t.Errorf("runs %v: %v", runs, err)
		}
		if ran != runs || !let {
			t.Errorf("runs %v: ran %v, let go %v", runs, ran, let)
		}
	}
}

// TestServeCalledOff: a shim that goes away while something is prepared ends that.
func TestServeCalledOff(t *testing.T) {
	shim, ended := served(t, func(ctx context.Context, _ Request) (*Prepared, func() error, func(), error) {
		<-ctx.Done()
		return nil, nil, nil, context.Cause(ctx)
	})
	if err := shim.Send(Message{Request: &Request{Protocol: protocol}}); err != nil {
		t.Fatal(err)
	}
	shim.Close()
	if err := <-ended; !errors.Is(err, errGone) {
		t.Errorf("it ends with %v", err)
	}
}

// TestServeFails: errors arrive with kind and hint, also where the programs are of different versions.
func TestServeFails(t *testing.T) {
	for name, test := range map[string]struct {
		protocol int
		is       func(error) bool
	}{"refused": {protocol, errdefs.IsPermissionDenied}, "another version": {protocol + 1, errdefs.IsFailedPrecondition}} {
		shim, ended := served(t, func(context.Context, Request) (*Prepared, func() error, func(), error) {
			return nil, nil, nil, failure.New(errdefs.ErrPermissionDenied, "ask for it", "no")
		})
		if err := shim.Send(Message{Request: &Request{Protocol: test.protocol}}); err != nil {
			t.Fatal(err)
		}
		var m Message
		if _, err := shim.Receive(&m); err != nil || m.Failed == nil || m.Failed.Hint() == "" {
			t.Fatalf("%s: %+v, %v", name, m, err)
		}
		if !test.is(m.Failed) {
			t.Errorf("%s: %v", name, m.Failed)
		}
		if err := <-ended; err == nil {
			t.Errorf("%s: it ends without an error", name)
		}
		if _, err := shim.Receive(&m); !errors.Is(err, io.EOF) {
			t.Errorf("%s: then comes %v", name, err)
		}
	}
}
