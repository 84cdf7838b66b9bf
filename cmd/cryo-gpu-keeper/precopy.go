//go:build cgo

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// precopy is what is copied while its processes run.
type precopy struct {
	pieces []*plannedPiece
	link   *device.Link
	ctx    context.Context // of sender
	sender *device.Sender  // nil: it has not begun, or has ended
	end    func()          // ends what is sent
	ended  chan error      // has what came of it
}

// plannedPiece is a piece and the sums of what was sent of it.
type plannedPiece struct {
	record.GPUPiece
	device *cudaDevice
	sums   []byte // of each unit that was sent; nil: nothing was
	sent   []bool // by units
	left   int64  // what was not sent, bytes
}

// plan notes pieces that are to be copied, and reports whether their devices can.
func (s *server) plan(pieces []record.GPUPiece) (able bool, err error) {
	if s.precopy.ended != nil || len(s.precopy.pieces)+len(pieces) > device.MaxPieces {
		return false, fmt.Errorf("plan %d pieces after %d: %w", len(pieces), len(s.precopy.pieces), errdefs.ErrFailedPrecondition)
	}
	if s.ring.Geometry().SlotBytes%device.Unit != 0 {
		return false, nil
	}
	for _, p := range pieces {
		d, err := s.memory.Device(p.Device)
		if err != nil {
			return false, device.PieceError(len(s.precopy.pieces), p, err)
		}
		if !d.openSums() {
			s.precopy.closeStages()
			return false, nil
		}
		s.precopy.pieces = append(s.precopy.pieces, &plannedPiece{GPUPiece: p, device: d, left: p.Size})
	}
	return true, nil
}

// begin offers the ring to the receiver, and keeps what sends to it.
func (s *server) begin(ctx context.Context, peer *os.File) error {
	if s.precopy.ended != nil {
		return fmt.Errorf("it has begun: %w", errdefs.ErrFailedPrecondition)
	}
	if err := s.ready(); err != nil {
		return err
	}
	link, err := device.OfferRing(peer, s.ring)
	if err != nil {
		return err
	}
	peer.Close() // the link has its own, and hanging up is to be heard
	sizes := make([]int64, len(s.precopy.pieces))
	for n, p := range s.precopy.pieces {
		sizes[n] = p.Size
	}
	p := &s.precopy
	p.link, p.ended = link, make(chan error, 1)
	begun, over := make(chan struct{}), make(chan struct{})
	p.end = func() { close(over) }
	go func() {
		p.ended <- link.Send(ctx, sizes, func(ctx context.Context, to *device.Sender) error {
			p.ctx, p.sender = ctx, to
			close(begun)
			select {
			case <-over:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	<-begun
	return nil
}

// precopyPart copies a part of a piece by its descriptor, or, without one, says that it is zero.
func (s *server) precopyPart(part device.Part, files []*os.File) error {
	p := &s.precopy
	if p.sender == nil || part.Piece >= len(p.pieces) || part.Length > p.pieces[part.Piece].Size-part.Offset {
		return fmt.Errorf("a part %+v that was not planned: %w", part, errdefs.ErrInvalidArgument)
	}
	piece := p.pieces[part.Piece]
	if err := piece.take(part); err != nil {
		return err
	}
	defer s.tell()()
	if len(files) == 0 {
		return s.precopyZero(part.Piece, part.Offset, part.Length)
	}
	m, err := piece.device.Import(files[0], piece.Size)
	if err != nil {
		return device.PieceError(part.Piece, piece.GPUPiece, err)
	}
	err = s.precopySpan(span{piece: part.Piece, from: part.Offset, to: part.Offset + part.Length}, m)
	if freed := m.Free(); err == nil {
		err = freed
	}
	return err
}

// take notes that a part is sent, which no part was before.
func (p *plannedPiece) take(part device.Part) error {
	if p.sums == nil {
		p.sums, p.sent = make([]byte, p.Size/device.Unit*sumSize), make([]bool, p.Size/device.Unit)
	}
	for at := part.Offset; at < part.Offset+part.Length; at += device.Unit {
		if p.sent[at/device.Unit] {
			return fmt.Errorf("a part %+v that was sent before: %w", part, errdefs.ErrInvalidArgument)
		}
		p.sent[at/device.Unit] = true
	}
	p.left -= part.Length
	return nil
}

// precopySpan copies a span, in the order of addresses. The program may write to it meanwhile. What is found to be zero is not copied: it is sent as zeros, whatever it becomes.
func (s *server) precopySpan(w span, m *memory) error {
	piece := s.precopy.pieces[w.piece]
	var marks []mark
	if piece.device.findsZero() {
		units, err := m.Zero(0, w.from, w.to-w.from)
		if err != nil {
			return device.PieceError(w.piece, piece.GPUPiece, err)
		}
		marks = make([]mark, len(units))
		for i, is := range units {
			if is {
				marks[i] = zero
			}
		}
	}
	for at := w.from; at < w.to; {
		end, what := w.run(marks, at)
		if what == zero {
			if err := s.precopyZero(w.piece, at, end-at); err != nil {
				return err
			}
			at = end
			continue
		}
		length := 0
		err := s.precopy.sender.Put(s.precopy.ctx, w.piece, at, func(dst []byte) (int, error) {
			length = int(min(int64(len(dst)), end-at, stageBytes))
			sums, err := m.Stage(0, dst[:length], at)
			if err != nil {
				return 0, device.PieceError(w.piece, piece.GPUPiece, err)
			}
			copy(piece.sums[at/device.Unit*sumSize:], sums)
			return length, nil
		})
		if err != nil {
			return err
		}
		at += int64(length)
		s.moved()
	}
	return nil
}

// precopyZero sends that a range is zero, and notes the sums of zeros for it.
func (s *server) precopyZero(n int, offset, length int64) error {
	piece := s.precopy.pieces[n]
	for at := offset; at < offset+length; at += device.Unit {
		copy(piece.sums[at/device.Unit*sumSize:], piece.device.zeroSums[:])
	}
	s.moved()
	return s.precopy.sender.Zero(s.precopy.ctx, n, offset, length)
}

// precopied waits until the receiver has taken all planned memory, and then frees the device memory for copies.
func (s *server) precopied() error {
	p := &s.precopy
	if p.sender == nil {
		return fmt.Errorf("nothing has begun: %w", errdefs.ErrFailedPrecondition)
	}
	for n, piece := range p.pieces {
		if piece.left > 0 {
			return device.PieceError(n, piece.GPUPiece, fmt.Errorf("%d bytes were not copied: %w", piece.left, errdefs.ErrFailedPrecondition))
		}
	}
	p.end()
	err := <-p.ended
	p.sender = nil
	p.link.Close()
	p.closeStages()
	return err
}

// closeStages frees the device memory for copies on all devices.
func (p *precopy) closeStages() {
	for _, piece := range p.pieces {
		piece.device.closeStage()
	}
}

// of returns a planned piece, of which all was sent, for what is held now.
func (p *precopy) of(n int, now record.GPUPiece) (*plannedPiece, error) {
	if n >= len(p.pieces) || p.sender != nil || p.pieces[n].left > 0 || p.pieces[n].GPUPiece != now {
		return nil, fmt.Errorf("it is not the planned piece %d: %w", n, errdefs.ErrInvalidArgument)
	}
	return p.pieces[n], nil
}

// same reports for each unit of a range of memory, which nothing writes to, whether its sums are those of what was sent.
func (p *plannedPiece) same(m *memory, stream int, offset, length int64) ([]bool, error) {
	sums, err := m.Sums(stream, offset, length)
	if err != nil {
		return nil, err
	}
	before := p.sums[offset/device.Unit*sumSize:]
	same := make([]bool, length/device.Unit)
	for i := range same {
		same[i] = bytes.Equal(sums[i*sumSize:][:sumSize], before[i*sumSize:][:sumSize])
	}
	return same, nil
}
