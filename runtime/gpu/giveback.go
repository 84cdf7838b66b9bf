package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// giveBack has processes that run, with their door closed perhaps, have their memory again, and opens their doors when all have. It goes by
// the state that their libraries tell, so it does not matter how far a hand-over had come, or who died over it. An error is a
// [*checkpoint.LossError], or there is no room on a device for now.
func giveBack(ctx context.Context, dial func(ctx context.Context, pid int) (Owner, error), host proc, all []*given) error {
	ctx = context.WithoutCancel(ctx)
	failed := 0
	for start := time.Now(); ; time.Sleep(pause) {
		err := giveBackOnce(ctx, dial, host, all)
		var later notYet
		switch {
		case err == nil:
			return nil
		case errors.As(err, &later):
			if time.Since(start) >= patience {
				return err
			}
		default:
			if failed++; failed == keepers {
				return &checkpoint.LossError{Err: err}
			}
		}
		log.G(ctx).WithError(err).Warn("give device memory back, again")
	}
}

func giveBackOnce(ctx context.Context, dial func(ctx context.Context, pid int) (Owner, error), host proc, all []*given) error {
	attach := func(g *given) error {
		g.hangUp() // by which a door opens that has all behind it
		if !g.released || !host.alive(g.PID) {
			return nil
		}
		err := g.attach(ctx, dial)
		if err != nil {
			g.hangUp()
			if !host.alive(g.PID) {
				return nil
			}
		}
		return err
	}
	// Only when all have theirs: those that work together go on together.
	if err := each(all, attach); err != nil {
		return err
	}
	return each(all, func(g *given) error {
		if g.library == nil {
			return nil
		}
		err := g.library.Open()
		g.hangUp()
		if err != nil && host.alive(g.PID) {
			return fmt.Errorf("%s: let it go on: %w", g.Process, err)
		}
		g.released = err != nil
		return nil
	})
}

// attach gives one process its memory, and leaves its door closed.
func (g *given) attach(ctx context.Context, dial func(ctx context.Context, pid int) (Owner, error)) error {
	failed := func(err error) error {
		err = fmt.Errorf("%s: give its device memory back: %w", g.Process, err)
		var call *library.CallError
		if errors.As(err, &call) && call.Code == outOfMemory {
			return notYet{err}
		}
		return err
	}
	hello, err := g.dial(ctx, dial)
	if err != nil {
		return failed(err)
	}
	if hello.State == library.Given {
		if err := g.library.Attach(ctx, g.pieces, g.files); err != nil {
			return failed(err)
		}
	}
	if hello.State == library.Whole {
		return nil
	}
	// What else keeps it would have to fit on the device beside what it becomes.
	g.closeFiles()
	if _, err := g.library.Own(ctx); err != nil { // what is left over can be handed over again all the same
		log.G(ctx).WithError(err).WithField("pid", g.PID).Warn("make device memory its own again")
	}
	return nil
}
