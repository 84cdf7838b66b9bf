package gpu

import (
	"context"
	"os"

	"github.com/cryo-project/cryo/image/record"
)

// beginHold has the keeper take what processes have given, while they let go of it and the driver saves the rest: their files are all it takes. [Engine.endHold]
// tells what came of it.
func (e *Engine) beginHold(ctx context.Context, all []*given) {
	var pieces []record.GPUPiece
	var files []*os.File // a list of its own: a keeper that hangs may be at it when others take their place
	var copied []int
	for _, g := range all {
		pieces, files = append(pieces, g.pieces...), append(files, g.files...)
		for _, piece := range g.pieces {
			copied = append(copied, e.planned[planned{g.PID, piece}])
		}
	}
	taker := e.keeper
	e.holding = beside(func() error { return taker.Hold(ctx, pieces, files, copied) })
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
