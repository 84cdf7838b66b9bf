package save

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/shim/worker"
)

// precopy is device memory that is taken in while the container runs.
type precopy struct {
	intake *image.DeviceIntake // nil: nothing has come
	took   time.Duration
	bytes  int64 // that have come
	same   int64 // of which so many were the same when the container stood still
}

// begin waits in the background for what is copied while the container runs. before is called when memory comes of the container that stands still, which nothing follows: it returns the intake; nil: nothing has come,
// or not all.
func (p *precopy) begin(ctx context.Context, shim *worker.Shim, begin func(*image.GPU) (*image.DeviceIntake, error), ended func()) (before func() *image.DeviceIntake) {
	waiting, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		err := p.serve(ctx, waiting, shim, begin)
		if p.intake != nil {
			ended()
		}
		done <- err
	}()
	return func() *image.DeviceIntake {
		stop()
		err := <-done
		if err == nil {
			return p.intake
		}
		if p.intake != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Debug("what was copied while the container ran is of no use")
		}
		return nil
	}
}

func (p *precopy) serve(ctx, waiting context.Context, shim *worker.Shim, begin func(*image.GPU) (*image.DeviceIntake, error)) error {
	conn, g, err := shim.Precopy(waiting)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := g.Check(); err != nil {
		return err
	}
	if p.intake, err = begin(g); err != nil {
		return err
	}
	link, err := device.AcceptRing(ctx, conn)
	if err != nil {
		return err
	}
	defer link.Close()
	start := time.Now()
	err = link.Receive(ctx, pieceSizes(g), func(c device.Chunk, release func()) error {
		switch {
		case c.Same > 0:
			return errors.New("take in device memory ahead: nothing was before")
		case c.Zero > 0:
			return p.intake.Zero(c.Piece, c.Offset, c.Zero)
		}
		return p.intake.Take(c.Piece, c.Offset, c.Data, release)
	})
	p.took, p.bytes = time.Since(start), g.HandedOver()
	if err != nil {
		return err
	}
	return p.intake.End()
}

// close drops what no snapshot was made of. Nothing is under way.
func (p *precopy) close() {
	if p.intake != nil {
		p.intake.Close()
	}
}
