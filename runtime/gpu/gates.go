package gpu

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// closeGates has the program in each process wait, and its devices finish their work. It gives those that wait: others have ended, or cannot hand over any more
// and are left to the driver.
func (e *Engine) closeGates(ctx context.Context, all []*given, fresh []cudaProcess) ([]*given, error) {
	err := e.inAttempts(ctx, len(all) > 1, func(bound time.Duration) (late, err error) {
		working, capturing, err := e.closeOnce(ctx, all, fresh, bound)
		all = talking(all)
		switch {
		case len(capturing) > 0:
			late = capturingError(e.Timeout, capturing)
		case len(working) > 0:
			late = deadlineError(e.Timeout, working)
		}
		return late, err
	}, func() error {
		// Also of those that were late: an open gate is opened without harm.
		err := each(all, func(g *given) error {
			err := g.library.Open()
			if err != nil && e.hasEnded(ctx, g) {
				g.hangUp()
				return nil
			}
			return err
		})
		all = talking(all)
		return err
	})
	return all, err
}

// closeOnce tries it for so long, and tells in which processes work, or a capture, had not ended. It hangs up on those that hand over nothing.
func (e *Engine) closeOnce(ctx context.Context, all []*given, fresh []cudaProcess, bound time.Duration) (late, capturing []string, err error) {
	var mu sync.Mutex
	err = each(all, func(g *given) error {
		err := g.library.Close(ctx, max(bound, time.Millisecond))
		mu.Lock()
		defer mu.Unlock()
		var busy *library.BusyError
		var unable *library.UnableError
		switch {
		case errors.As(err, &busy) && busy.Capturing:
			capturing = append(capturing, e.working(g.cudaProcess))
		case errors.As(err, &busy):
			late = append(late, e.working(g.cudaProcess))
		case errors.As(err, &unable):
			i := slices.IndexFunc(fresh, func(p cudaProcess) bool { return p.PID == g.PID })
			if err := e.leave(ctx, &fresh[i], unable.Reason); err != nil {
				return err
			}
			return e.giveUp(ctx, g)
		case err != nil && e.hasEnded(ctx, g):
			g.hangUp()
		default:
			return err
		}
		return nil
	})
	return late, capturing, err
}

// talking are those that were not hung up on.
func talking(all []*given) (left []*given) {
	for _, g := range all {
		if g.library != nil {
			left = append(left, g)
		}
	}
	return left
}
