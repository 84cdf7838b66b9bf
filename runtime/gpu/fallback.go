package gpu

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/record"
)

// hasEnded reports whether a process that is asked for something, and has let go of nothing, came to its end by itself. It is of no concern then.
func (e *Engine) hasEnded(ctx context.Context, g *given) bool {
	return context.Cause(ctx) == nil && !g.released && !g.parted && !e.host().alive(g.PID)
}

// leave leaves a process to the driver, and records why.
func (e *Engine) leave(ctx context.Context, p *cudaProcess, why string) error {
	if e.RequireKeeper {
		return fallbackError(p.Process, why)
	}
	log.G(ctx).WithField("pid", p.PID).WithField("reason", why).Info("a process goes by the driver")
	p.able, p.fallback = false, why[:min(len(why), record.MaxFallback)]
	return nil
}

// leaveAll leaves those to the driver that have handed over nothing yet, where there is no keeper to take it: it could not start.
func (e *Engine) leaveAll(ctx context.Context, fresh []cudaProcess, cause error) error {
	if e.RequireKeeper || e.pieces > 0 || context.Cause(ctx) != nil {
		return cause
	}
	e.stop()
	for i := range fresh {
		j := slices.IndexFunc(e.given, func(g *given) bool { return g.PID == fresh[i].PID && g.library != nil })
		if j < 0 {
			continue
		}
		if err := e.leave(ctx, &fresh[i], "nothing can take its memory: "+cause.Error()); err != nil {
			return err
		}
		if err := e.giveUp(ctx, e.given[j]); err != nil {
			return fmt.Errorf("%w; nothing can take its memory: %w", err, cause)
		}
	}
	return nil
}

// giveUp ends the conversation with a process that goes by the driver.
func (e *Engine) giveUp(ctx context.Context, g *given) error {
	hello, err := g.library.Hello()
	if err == nil {
		_, err = g.books()
	}
	if err == nil {
		err = g.drivable()
	}
	if err == nil {
		err = g.own(ctx, hello, e.Timeout)
	}
	g.hangUp()
	if err != nil && e.hasEnded(ctx, g) {
		return nil
	}
	return err
}

// present leaves out those that have ended.
func (e *Engine) present(fresh []cudaProcess) []cudaProcess {
	return slices.DeleteFunc(fresh, func(p cudaProcess) bool { return !e.host().alive(p.PID) })
}
