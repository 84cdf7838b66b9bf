package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// giveBack has processes that run, with their gate closed perhaps, have their memory again, and opens their gates when all have. It goes by
// the state that their libraries tell, so it does not matter how far a hand-over had come, or which process died over it. An error is a
// [*checkpoint.LossError], or there is no room on a device for now, or what processes make cannot be filled. makeRoom is as for
// [bringBack].
func giveBack(ctx context.Context, c Container, all []*given, f *filler, makeRoom func()) error {
	ctx = context.WithoutCancel(ctx)
	failed := 0
	for start := time.Now(); ; time.Sleep(pause) {
		err := giveBackOnce(ctx, c, all, f)
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

func giveBackOnce(ctx context.Context, c Container, all []*given, f *filler) error {
	host := c.host()
	attach := func(g *given) error {
		g.hangUp() // by which a gate opens that has all its memory
		if !(g.released || g.parted) || !host.alive(g.PID) {
			return nil
		}
		err := g.attach(ctx, f)
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
	if err := together(all); err != nil {
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
		g.released, g.parted, g.apart = err != nil, err != nil, err != nil
		return nil
	})
}

// attach gives one process its memory, and leaves its gate closed.
func (g *given) attach(ctx context.Context, f *filler) error {
	failed := func(err error) error {
		err = fmt.Errorf("%s: give its device memory back: %w", g.Process, err)
		var gone *library.GoneError
		if noRoom(err) || errors.As(err, &gone) && gone.Silent {
			return notYet{err}
		}
		return err
	}
	bound := 2 * moveTime(g.bytes()) // memory that moves from device to device takes no such time
	timed, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	hello, err := g.dial(timed)
	if err != nil {
		return failed(err)
	}
	if hello.State == library.Given {
		if err := g.library.Attach(timed, g.pieces, g.files); err != nil {
			var call *device.CallError
			if errors.As(err, &call) && call.Code == invalidDevice {
				if err := g.remake(ctx, f); err != nil {
					return failed(err)
				}
				g.settled = true
				return nil
			}
			if errors.As(err, &call) {
				return refusedError{failed(err)}
			}
			g.mayGoOn()
			return failed(err)
		}
	}
	if g.whole = hello.State == library.Whole; g.whole {
		return nil
	}
	left, err := g.library.Own(timed)
	if err != nil {
		g.mayGoOn()
	}
	if err == nil && left > 0 {
		// What else keeps it would have to fit on the device beside what it becomes.
		if g.alone != nil {
			g.alone()
		}
		g.closeFiles()
		timed, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		_, err = g.library.Own(timed)
	}
	g.settled = err == nil && left == 0
	var call *device.CallError
	if errors.As(err, &call) {
		return &checkpoint.LossError{Err: failed(err)} // what there was no room for is no error
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("pid", g.PID).Warn("make device memory its own again")
	}
	return nil
}

// noRoom reports whether a device had no room for what a process, or a keeper, was to make there.
func noRoom(err error) bool {
	var call *device.CallError
	return errors.As(err, &call) && call.Code == device.OutOfMemory
}

// mayGoOn is called when a library has not said how it comes by its memory: its gate may open at any time.
func (g *given) mayGoOn() {
	if g.doubt != nil {
		g.doubt()
	}
}

// refusedError is that of a process whose driver has not attached what it was given. It has none of it, and can be given other memory.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// onlyRefused reports whether [giveBack] has failed for nothing but that.
func onlyRefused(err error) bool {
	var refused refusedError
	var within *checkpoint.LossError
	last, ok := err.(*checkpoint.LossError) //nolint:errorlint // what is in it is of one process, and another loss
	return ok && errors.As(last.Err, &refused) && !errors.As(last.Err, &within)
}
