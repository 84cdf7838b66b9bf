package gpu

import (
	"context"
	"slices"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// holding is a keeper that takes what processes have given.
type holding struct {
	done chan struct{}
	err  error // valid when done is closed
}

// beginHold has the keeper take what processes have given, while they let go of it and the driver saves the rest: their files are all it takes. [Engine.endHold]
// tells what came of it.
func (e *Engine) beginHold(ctx context.Context, all []*given) {
	h, taker := &holding{done: make(chan struct{})}, e.keeper
	e.holding = h
	var steps []func() error
	for _, g := range all {
		pieces := make([]keeper.Piece, len(g.pieces))
		for i, p := range g.pieces {
			pieces[i] = keeper.Piece{Device: p.Device, Size: int64(p.Size), Address: p.Address}
		}
		files := slices.Clone(g.files) // a keeper that hangs may be at it when others take their place
		steps = append(steps, func() error { return taker.Hold(ctx, pieces, files) })
	}
	go func() {
		defer close(h.done)
		for _, step := range steps {
			if h.err = step(); h.err != nil {
				return
			}
		}
	}()
}

// endHold waits until the keeper has taken all. After an error the processes get theirs back by the files.
func (e *Engine) endHold() error {
	h := e.holding
	if h == nil {
		return nil
	}
	e.holding = nil
	<-h.done
	return h.err
}

// breakHold ends a keeper that is still at it.
func (e *Engine) breakHold() {
	h := e.holding
	if h == nil {
		return
	}
	e.holding = nil
	select {
	case <-h.done:
		return
	default:
	}
	_ = e.keeper.Kill()
	select {
	case <-h.done:
	case <-time.After(waitTime): // a driver that hangs may keep even a killed process
	}
}
