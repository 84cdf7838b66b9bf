package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// giveBack has processes that run, with their gate closed perhaps, have their memory again, and opens their gates when all have. It goes by
// the state that their libraries tell, so it does not matter how far a hand-over had come, or who died over it. An error is a
// [*checkpoint.LossError], or there is no room on a device for now, or what processes make cannot be filled. makeRoom is as for
// [bringBack].
func giveBack(ctx context.Context, dial func(ctx context.Context, pid int) (Owner, error), host proc, all []*given, f *filler, makeRoom func()) error {
	ctx = context.WithoutCancel(ctx)
	failed := 0
	for start := time.Now(); ; time.Sleep(pause) {
		err := giveBackOnce(ctx, dial, host, all, f)
		var later notYet
		var loss *checkpoint.LossError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &loss):
			return err
		case errors.As(err, &later):
			if time.Since(start) >= patience {
				return err
			}
			if makeRoom != nil {
				makeRoom()
			}
		default:
			if failed++; failed == helpers {
				return &checkpoint.LossError{Err: err}
			}
		}
		log.G(ctx).WithError(err).Warn("give device memory back, again")
	}
}

func giveBackOnce(ctx context.Context, dial func(ctx context.Context, pid int) (Owner, error), host proc, all []*given, f *filler) error {
	restore := func(g *given) error {
		g.hangUp() // by which a gate opens that has all its memory
		if !g.released || !host.alive(g.PID) {
			return nil
		}
		err := g.restore(ctx, dial, f)
		if err != nil {
			g.hangUp()
			if !host.alive(g.PID) {
				return nil
			}
		}
		return err
	}
	// Only when all have theirs: those that work together go on together.
	if err := each(all, restore); err != nil {
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

// restore gives one process its memory, and leaves its gate closed.
func (g *given) restore(ctx context.Context, dial func(ctx context.Context, pid int) (Owner, error), f *filler) error {
	// Memory that moves from device to device takes no such time.
	timed, cancel := context.WithTimeout(ctx, 2*moveTime(g.bytes()))
	defer cancel()
	hello, err := g.dial(timed, dial)
	if err == nil && hello.State == library.Given {
		err = g.remake(timed, f)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: give its device memory back: %w", g.Process, err)
	var gone *library.GoneError
	if noRoom(err) || errors.As(err, &gone) && gone.Silent {
		return notYet{err}
	}
	return err
}

// noRoom tells whether a device had no room for what a process, or a keeper, was to make there.
func noRoom(err error) bool {
	var process *library.CallError
	var other *keeper.CallError
	return errors.As(err, &process) && process.Code == outOfMemory || errors.As(err, &other) && other.Code == outOfMemory
}
