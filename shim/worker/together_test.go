package worker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/runc"
)

// inStep is a dump of a container that stands still until the process lets it proceed. dumped becomes true when it has been dumped.
func inStep(dumped *bool) Dump {
	return func(ctx context.Context, h *Holder) (checkpoint.Result, error) {
		if !h.Together {
			return checkpoint.Result{}, errors.New("it is not in step with others")
		}
		if err := h.Held(ctx, checkpoint.Held{}); err != nil {
			return checkpoint.Result{}, checkpoint.Failed("c", err)
		}
		at := netip.MustParseAddrPort("[fd09::1]:80")
		if err := h.Held(ctx, checkpoint.Held{Cut: true, Listeners: []netip.AddrPort{at}, Connections: []runc.Connection{{Local: at, Remote: at}}}); err != nil {
			return checkpoint.Result{}, checkpoint.Failed("c", err)
		}
		*dumped = true
		d, err := h.Dumped(ctx, checkpoint.Dumped{})
		return checkpoint.Result{Killed: d == checkpoint.Kill}, err
	}
}

// TestTogether has a container stand still until the others do, then dumped.
func TestTogether(t *testing.T) {
	dumped := false
	c := takes(t, t.Context(), inStep(&dumped))
	called := 0
	_, err := c.shim.Hold(t.Context(), Hold{}, func(ctx context.Context, h checkpoint.Held) error {
		called++
		if !h.Cut {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
		if dumped || ctx.Err() != nil {
			t.Error("it is dumped before it may be")
		}
		at := netip.MustParseAddrPort("[fd09::1]:80")
		if !slices.Equal(h.Listeners, []netip.AddrPort{at}) || !slices.Equal(h.Connections, []runc.Connection{{Local: at, Remote: at}}) {
			t.Errorf("got %+v", h)
		}
		return nil
	})
	if err != nil || called != 2 || !dumped {
		t.Fatalf("%d calls, %v", called, err)
	}
	if _, err := c.shim.Decide(t.Context(), checkpoint.Resume); err != nil {
		t.Error(err)
	}
	if err := c.ends(t, Message{Taken: &Taken{}}); err != nil {
		t.Error(err)
	}
}

// TestTogetherRefused: where the process does not let it proceed, the container is not dumped, and is as before.
func TestTogetherRefused(t *testing.T) {
	dumped := false
	c := takes(t, t.Context(), inStep(&dumped))
	other := failure.New(errdefs.ErrAborted, "", "another container could not be saved")
	if _, err := c.shim.Hold(t.Context(), Hold{}, func(context.Context, checkpoint.Held) error { return other }); !errors.Is(err, other) {
		t.Errorf("got %v", err)
	}
	if err := c.shim.Await(time.Minute); !errors.Is(err, context.Canceled) || dumped {
		t.Errorf("dumped is %v, got %v", dumped, err)
	}
	if err := c.ends(t, Message{Failed: other}); !errors.Is(err, errdefs.ErrAborted) {
		t.Errorf("got %v", err)
	}
}

// TestTogetherEnds: a checkpoint that the shim ends while the others are waited for ends the waiting, with the shim's reason.
func TestTogetherEnds(t *testing.T) {
	lost := checkpoint.Lost("checkpoint", "c", errors.New("it was killed"))
	c := takes(t, t.Context(), func(ctx context.Context, h *Holder) (checkpoint.Result, error) {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if err := h.Held(ctx, checkpoint.Held{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		return checkpoint.Result{}, lost
	})
	_, err := c.shim.Hold(t.Context(), Hold{}, func(ctx context.Context, _ checkpoint.Held) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Second):
			return errors.New("it waits for ever")
		}
	})
	if !errors.Is(err, failure.ErrLost) {
		t.Errorf("got %v", err)
	}
	if err := c.ends(t, Message{Failed: failure.Of(err)}); !errors.Is(err, failure.ErrLost) {
		t.Errorf("got %v", err)
	}
}

// TestTogetherDied: a process that stops waiting for the others, and dies, has the container go on.
func TestTogetherDied(t *testing.T) {
	dumped := false
	c := takes(t, t.Context(), inStep(&dumped))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	died := errors.New("it dies")
	if _, err := c.shim.Hold(ctx, Hold{}, func(waiting context.Context, _ checkpoint.Held) error {
		cancel(died)
		<-waiting.Done()
		return context.Cause(waiting)
	}); !errors.Is(err, died) {
		t.Errorf("got %v", err)
	}
	_ = c.v.channel.CutOff()
	if err := <-c.over; !errors.Is(err, ErrCheckpointDied) || dumped {
		t.Errorf("dumped is %v, got %v", dumped, err)
	}
}

// TestTogetherEarlier: a shim that does not know of others dumps at once, which is refused and undone.
func TestTogetherEarlier(t *testing.T) {
	c := takes(t, t.Context(), func(ctx context.Context, h *Holder) (checkpoint.Result, error) {
		_, err := h.Dumped(ctx, checkpoint.Dumped{})
		return checkpoint.Result{}, err
	})
	_, err := c.shim.Hold(t.Context(), Hold{}, func(context.Context, checkpoint.Held) error {
		t.Error("it is held")
		return nil
	})
	if failure.Rule(err) != TogetherRule || failure.Hint(err) == "" || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v", err)
	}
	if err := c.shim.Await(time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := c.ends(t, Message{Failed: failure.Of(err)}); failure.Rule(err) != TogetherRule {
		t.Errorf("got %v", err)
	}
}
