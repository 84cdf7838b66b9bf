//go:build cgo

package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// arrived is a full slot.
type arrived struct {
	device.Chunk
	release func()
}

// receiveAll copies what comes through the ring to the devices, all side by side. It returns when the last copy is done.
func (s *server) receiveAll(ctx context.Context, link *device.Link) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var workers sync.WaitGroup
	var all []chan arrived
	queues := make([]chan arrived, len(s.pieces)) // by piece; one for each device
	for _, numbers := range s.devices(0) {
		q := make(chan arrived, link.Geometry().Slots) // no device waits for another's
		all = append(all, q)
		for _, n := range numbers {
			queues[n] = q
		}
		for stream := range streams {
			workers.Go(func() { s.fill(ctx, stream, q, fail) })
		}
	}
	err := link.Receive(ctx, s.sizes(), func(c device.Chunk, release func()) error {
		if c.Data == nil {
			return fmt.Errorf("receive device memory: bytes were named and not sent: %w", errdefs.ErrInvalidArgument)
		}
		queues[c.Piece] <- arrived{c, release}
		return nil
	})
	if err != nil {
		fail(err)
	}
	for _, q := range all {
		close(q)
	}
	workers.Wait()
	return err
}

// fill copies to one device, on one stream.
func (s *server) fill(ctx context.Context, stream int, from <-chan arrived, fail context.CancelCauseFunc) {
	for a := range from {
		if ctx.Err() != nil {
			continue // the sender is told by the end of the connection
		}
		h := s.pieces[a.Piece]
		if err := h.memory.Write(stream, a.Data, a.Offset); err != nil {
			fail(device.PieceError(a.Piece, h.GPUPiece, err))
			continue
		}
		a.release()
		s.moved()
	}
}

// sizes are those of what is held, by number.
func (s *server) sizes() []int64 {
	sizes := make([]int64, len(s.pieces))
	for n, h := range s.pieces {
		sizes[n] = h.Size
	}
	return sizes
}
