package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
)

// taking is a checkpoint process that a shim serves.
type taking struct {
	shim *Shim
	v    *Conversation
	off  chan error // why it is called off
	over chan error // how the shim's side ends
}

// takes has a shim serve a checkpoint process, of which this one plays the part.
func takes(t *testing.T, ctx context.Context, dump Dump) taking {
	t.Helper()
	descriptor, other := pair(t)
	p := &Process{said: make(chan Message), channel: other, ended: make(chan struct{})}
	go func() {
		p.listen()
		close(p.ended)
	}()
	c := taking{off: make(chan error, 1), over: make(chan error, 1)}
	go func() {
		_, _, err := p.take(ctx, dump)
		c.over <- err
	}()
	if err := other.Send(Message{Request: &Request{Protocol: protocol, Checkpoint: &Checkpoint{}}}); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.v, _, err = Serve(descriptor); err != nil {
		t.Fatal(err)
	}
	c.shim = newShim(c.v, func(err error) {
		select {
		case c.off <- err:
		default:
		}
	}, false)
	return c
}

// ends has the process answer and end, and returns how the shim's side ends.
func (c taking) ends(t *testing.T, m Message) error {
	t.Helper()
	c.v.Tell(m)
	c.v.Close()
	select {
	case err := <-c.over:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the shim waits for ever")
		return nil
	}
}

// TestHold has a container dumped, and run on or end.
func TestHold(t *testing.T) {
	for _, decision := range []checkpoint.Decision{checkpoint.Resume, checkpoint.Kill} {
		c := takes(t, t.Context(), func(ctx context.Context, h *Holder) (checkpoint.Result, error) {
			d, err := h.Dumped(ctx, checkpoint.Dumped{DumpSeconds: 1.5})
			return checkpoint.Result{Freeze: 2 * time.Second, Killed: d == checkpoint.Kill}, err
		})
		dumped, err := c.shim.Hold(t.Context(), Hold{Images: "a"}, nil)
		if err != nil || dumped.DumpSeconds != 1.5 {
			t.Fatalf("got %+v, %v", dumped, err)
		}
		released, err := c.shim.Decide(t.Context(), decision)
		if err != nil || released.FreezeSeconds != 2 || released.Killed != (decision == checkpoint.Kill) {
			t.Errorf("got %+v, %v", released, err)
		}
		if err := c.shim.Await(time.Minute); err != nil || c.shim.Silent() {
			t.Error(err)
		}
		if err := c.ends(t, Message{Taken: &Taken{}}); err != nil {
			t.Error(err)
		}
	}
}

// TestHoldRefused: a timeout that is none is refused before anything is dumped, and a process that answers ends the dump.
func TestHoldRefused(t *testing.T) {
	for _, seconds := range []float64{-1, 1e9} {
		c := takes(t, t.Context(), func(context.Context, *Holder) (checkpoint.Result, error) { panic("it is dumped") })
		if _, err := c.shim.Hold(t.Context(), Hold{Options: checkpoint.Options{GPUTimeout: seconds}}, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("got %v", err)
		}
		if err := c.ends(t, Message{Failed: failure.New(errdefs.ErrNotFound, "", "x")}); !errdefs.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
	}
}

// TestHoldDevices: device memory has a connection of its own, that keeps messages apart, and may go on when the container runs again.
func TestHoldDevices(t *testing.T) {
	c := takes(t, t.Context(), func(ctx context.Context, h *Holder) (checkpoint.Result, error) {
		f, err := h.Devices()
		if err != nil {
			return checkpoint.Result{}, err
		}
		defer f.Close()
		if _, err := h.Dumped(ctx, checkpoint.Dumped{Devices: true, DevicesPending: true}); err != nil {
			return checkpoint.Result{}, err
		}
		h.Released(checkpoint.Result{Load: time.Second, Pending: true})
		for _, text := range []string{"one", "two"} {
			if _, err := f.WriteString(text); err != nil {
				return checkpoint.Result{}, err
			}
		}
		return checkpoint.Result{}, nil
	})
	dumped, err := c.shim.Hold(t.Context(), Hold{Options: checkpoint.Options{Devices: true}}, nil)
	if err != nil || !dumped.Devices || !dumped.DevicesPending {
		t.Fatalf("got %+v, %v", dumped, err)
	}
	conn, err := c.shim.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	released, err := c.shim.Decide(t.Context(), checkpoint.Resume)
	if err != nil || !released.DevicesPending || released.LoadSeconds != 1 {
		t.Errorf("got %+v, %v", released, err)
	}
	buf := make([]byte, 100)
	for _, want := range []string{"one", "two"} {
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("got %q, %v", buf[:n], err)
		}
	}
	if err := c.ends(t, Message{Taken: &Taken{}}); err != nil {
		t.Error(err)
	}
}

// TestHoldStock: a stock client's checkpoint asks for nothing.
func TestHoldStock(t *testing.T) {
	var h *Holder
	if f, err := h.Pages(); f != nil || err != nil || h.Asked().Devices {
		t.Errorf("got %v, %v", f, err)
	}
	if f, err := (&Holder{}).Devices(); f != nil || err != nil {
		t.Errorf("got %v, %v", f, err)
	}
}

// TestHoldUndone: the dump ends where the process wants it undone, and where it has died. What has become of the container reaches the process, and the client of one that has died.
func TestHoldUndone(t *testing.T) {
	for name, failed := range map[string]func(error) error{
		"undone": func(err error) error { return checkpoint.Failed("c", err) },
		"lost":   func(err error) error { return checkpoint.Lost("checkpoint", "c", err) },
		"busy":   func(err error) error { return fmt.Errorf("%w: %w", checkpoint.Busy("c"), err) },
	} {
		dump := func(ctx context.Context, h *Holder) (checkpoint.Result, error) {
			_, err := h.Dumped(ctx, checkpoint.Dumped{})
			return checkpoint.Result{}, failed(err)
		}
		c := takes(t, t.Context(), dump)
		if _, err := c.shim.Hold(t.Context(), Hold{}, nil); err != nil {
			t.Fatal(err)
		}
		c.shim.Undo()
		err := c.shim.Await(time.Minute)
		if want := failed(errUndo); err == nil || err.Error() != want.Error() || errors.Is(err, failure.ErrLost) != (name == "lost") || errors.Is(err, failure.ErrBusy) != (name == "busy") {
			t.Errorf("%s: got %v", name, err)
		}
		if err := c.ends(t, Message{Failed: failure.New(errdefs.ErrAborted, "", "x")}); !errdefs.IsAborted(err) {
			t.Errorf("%s: got %v", name, err)
		}
		c = takes(t, t.Context(), dump)
		if _, err := c.shim.Hold(t.Context(), Hold{}, nil); err != nil {
			t.Fatal(err)
		}
		_ = c.v.channel.CutOff()
		if err := <-c.over; !errors.Is(err, ErrCheckpointDied) || errors.Is(err, failure.ErrLost) != (name == "lost") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestHoldDied: a process that has died after it had the container ended has a snapshot.
func TestHoldDied(t *testing.T) {
	c := takes(t, t.Context(), func(ctx context.Context, h *Holder) (checkpoint.Result, error) {
		d, err := h.Dumped(ctx, checkpoint.Dumped{})
		return checkpoint.Result{Killed: d == checkpoint.Kill}, err
	})
	if _, err := c.shim.Hold(t.Context(), Hold{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.shim.Decide(t.Context(), checkpoint.Kill); err != nil {
		t.Fatal(err)
	}
	if err := c.shim.Await(time.Minute); err != nil {
		t.Fatal(err)
	}
	_ = c.v.channel.CutOff()
	if err := <-c.over; !errdefs.IsUnavailable(err) || failure.Hint(err) == failure.Hint(ErrCheckpointDied) {
		t.Errorf("got %v (%s)", err, failure.Hint(err))
	}
}

// TestHoldCalledOff: the process hears that no client waits any more, and that the shim has died.
func TestHoldCalledOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := takes(t, ctx, nil)
	cancel()
	if err := <-c.off; !errors.Is(err, errUnwanted) {
		t.Errorf("got %v", err)
	}
	if err := c.ends(t, Message{Failed: failure.Of(errUnwanted)}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	descriptor, other := pair(t)
	if err := other.Send(Message{Request: &Request{Protocol: protocol, Checkpoint: &Checkpoint{}}}); err != nil {
		t.Fatal(err)
	}
	v, _, err := Serve(descriptor)
	if err != nil {
		t.Fatal(err)
	}
	off := make(chan error, 1)
	shim := newShim(v, func(err error) { off <- err }, false)
	other.Close()
	if _, err := shim.Hold(t.Context(), Hold{}, nil); !errdefs.IsUnavailable(err) || !shim.Silent() || !errors.Is(<-off, errNoShim) {
		t.Errorf("got %v", err)
	}
}
