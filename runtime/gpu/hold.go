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
	for _, g := range all {
		pieces, files = append(pieces, g.pieces...), append(files, g.files...)
	}
	taker := e.keeper
	e.holding = beside(func() error { return taker.Hold(ctx, pieces, files, nil) })
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
