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
	if len(all) > 1 {
		return e.closeByTurns(ctx, all, fresh)
	}
	late, err := e.closeOnce(ctx, all, fresh, func(g *given) error { return g.library.Close(ctx, e.Timeout) })
	if err == nil {
		err = late.err(e.Timeout)
	}
	return talking(all), err
}

// A round in which gates are closed by turns takes from one millisecond to 16: what has not ended in the first may take long. In every eighth round of those in which nothing
// else happens, all make a call: they may wait for each other. mostCalls is how many calls a process makes in a round at most: a language model makes some thousand for a token.
const (
	shortest    = time.Millisecond
	roundsEach  = 32
	doublings   = 4
	roundsQuiet = 8
	mostCalls   = 1024
)

// closeByTurns closes the gates of processes that may wait for each other within kernels, as ranks of NCCL do. All gates are closed at once, and stay closed. Where work of some has not
// ended, it may wait for what the others have not begun: those whose work has ended make calls, and so on, until the work of all has ended. So they all come to stand
// where the first of them was. As long as the same processes are behind, they make twice as many calls in each round. Where others are behind then, those went too far, and the most
// that may be made in a round is halved: in the end each makes one call.
func (e *Engine) closeByTurns(ctx context.Context, all []*given, fresh []cudaProcess) ([]*given, error) {
	var behind, last []*given // in the round before, and when there were any
	calls, most, quiet := uint32(1), uint32(2*mostCalls), 0
	for round, deadline := 0, time.Now().Add(e.Timeout); ; round++ {
		bound := shortest << min(round/roundsEach, doublings)
		if _, err := e.closeOnce(ctx, talking(behind), fresh, func(g *given) error { return g.library.Stand(ctx, shortest, calls) }); err != nil {
			return talking(all), err
		}
		all = talking(all)
		late, err := e.closeOnce(ctx, all, fresh, func(g *given) error { return g.library.Stand(ctx, bound, 0) })
		all = talking(all)
		if err != nil || late.none() {
			return all, err
		}
		if time.Now().After(deadline) {
			return all, errors.Join(late.err(e.Timeout), e.openGates(ctx, all))
		}
		stand := slices.DeleteFunc(slices.Clone(all), func(g *given) bool { return slices.Contains(late.all, g) })
		switch {
		case len(stand) == 0:
			behind, calls = nil, 1
			if quiet++; quiet%roundsQuiet == 0 {
				behind = all
			}
			continue
		case !within(stand, last): // who was ahead is behind
			calls, most = 1, max(most/2, 1)
		default:
			calls = min(2*calls, most)
		}
		behind, last, quiet = stand, stand, 0
	}
}

// within reports whether all of some are among others.
func within(some, others []*given) bool {
	return !slices.ContainsFunc(some, func(g *given) bool { return !slices.Contains(others, g) })
}

// openGates opens all, also those that are open.
func (e *Engine) openGates(ctx context.Context, all []*given) error {
	return each(all, func(g *given) error {
		err := g.library.Open()
		if err != nil && e.hasEnded(ctx, g) {
			g.hangUp()
			return nil
		}
		return err
	})
}

// late are processes that could not be stopped in time.
type late struct {
	all                []*given
	working, capturing []string // why, and who for people
}

func (l late) none() bool { return len(l.all) == 0 }

func (l late) err(timeout time.Duration) error {
	switch {
	case len(l.capturing) > 0:
		return capturingError(timeout, l.capturing)
	case len(l.working) > 0:
		return deadlineError(timeout, l.working)
	}
	return nil
}

// closeOnce closes each gate once. It hangs up on those that hand over nothing.
func (e *Engine) closeOnce(ctx context.Context, all []*given, fresh []cudaProcess, closeGate func(*given) error) (l late, err error) {
	var mu sync.Mutex
	err = each(all, func(g *given) error {
		err := closeGate(g)
		mu.Lock()
		defer mu.Unlock()
		var busy *library.BusyError
		var unable *library.UnableError
		switch {
		case errors.As(err, &busy) && busy.Capturing:
			l.all, l.capturing = append(l.all, g), append(l.capturing, e.working(g.cudaProcess))
		case errors.As(err, &busy):
			l.all, l.working = append(l.all, g), append(l.working, e.working(g.cudaProcess))
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
	return l, err
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
