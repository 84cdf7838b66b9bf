package image

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/pages"
	"github.com/cryo-project/cryo/image/segment"
)

// intakeStream is where the pages of one file are that arrive, by ascending addresses.
type intakeStream struct {
	in      *Intake
	file    uint64 // ID of the pages file, as CRIU would have numbered it, or of device memory
	next    int64  // number of the next page in it
	end     uint64 // address behind the last page
	job     *frameJob
	staging []byte // the slot of a job that has none; nil: there was none yet
	filled  int64  // bytes in the job's slot
	window  *intakeWindow
}

// stream begins a file.
func (in *Intake) stream(file uint64) *intakeStream {
	s := &intakeStream{in: in, file: file}
	in.open[file] = s
	return s
}

// add takes in count pages from addr on, which it reads from r.
func (s *intakeStream) add(addr, count uint64, r io.Reader) error {
	in, size := s.in, uint64(s.in.pageSize)
	if addr%size != 0 || addr < s.end || count > pages.MaxPages || uint64(s.next)+count > pages.MaxPages || addr > index.MaxAddress || addr+count*size > index.MaxAddress {
		return fmt.Errorf("take in memory: %d pages at %#x after %#x: %w", count, addr, s.end, errdefs.ErrInvalidArgument)
	}
	for count > 0 {
		if err := s.reach(addr); err != nil {
			return err
		}
		n := min(count, (index.MaxFrame-addr%index.MaxFrame)/size)
		if _, err := io.ReadFull(r, s.place()[s.filled:s.filled+int64(n*size)]); err != nil {
			return fmt.Errorf("take in memory: %w", err)
		}
		p := &s.job.piece
		if last := len(p.Runs) - 1; last >= 0 && addr == s.end {
			p.Runs[last].Count += int64(n)
		} else {
			p.Runs = append(p.Runs, pages.Run{Addr: addr, First: s.next, Count: int64(n)})
		}
		s.filled += int64(n * size)
		s.next += int64(n)
		addr += n * size
		count -= n
		s.end = addr
		if done := in.received.Add(int64(n * size)); in.o.Progress != nil {
			in.o.Progress(in.what, done, 0)
		}
	}
	return nil
}

// reach makes ready for pages at addr: it ends the piece, and the window, that addr is no part of.
func (s *intakeStream) reach(addr uint64) error {
	in := s.in
	if err := context.Cause(in.ctx); err != nil {
		return err
	}
	key := windowKey{file: s.file, number: addr / uint64(in.o.SegmentSize)}
	if s.window != nil && s.window.key != key {
		if err := s.endWindow(); err != nil {
			return err
		}
	}
	if s.window == nil {
		s.window = in.beginWindow(key)
	}
	if s.job != nil && addr/index.MaxFrame != s.job.piece.Runs[0].Addr/index.MaxFrame {
		if err := s.endPiece(); err != nil {
			return err
		}
	}
	if s.job != nil {
		return nil
	}
	s.job = &frameJob{piece: segment.Piece{File: s.file}, slot: in.memory.try(), home: in.memory, done: make(chan struct{})}
	s.filled = 0
	if s.job.slot == nil && s.staging == nil {
		s.staging = make([]byte, index.MaxFrame)
	}
	return nil
}

// place is where the pages of the job go.
func (s *intakeStream) place() []byte {
	if s.job.slot == nil {
		return s.staging
	}
	return s.job.slot
}

// endPiece hands a piece, if there is one, on to be encoded, and to its window, whose queue is long enough for all its pieces.
func (s *intakeStream) endPiece() error {
	if s.job == nil {
		return nil
	}
	if s.job.slot == nil {
		if err := s.putAside(); err != nil {
			return err
		}
	}
	in := s.in
	select {
	case in.jobs <- s.job:
	default:
		in.hurry()
		select {
		case in.jobs <- s.job:
		case <-in.ctx.Done():
			return context.Cause(in.ctx)
		}
	}
	s.window.queue <- s.job
	s.job = nil
	return nil
}

// putAside moves the pages of a job without a slot into the spill. Where that has no room, the stream waits for a slot.
func (s *intakeStream) putAside() (err error) {
	var ok bool
	if s.job.kept, ok, err = s.in.spill.putPages(s.staging[:s.filled]); ok || err != nil {
		s.job.home = s.in.reserve
		return err
	}
	s.in.hurry()
	if s.job.slot, err = s.in.memory.take(s.in.ctx); err != nil {
		return err
	}
	copy(s.job.slot, s.staging[:s.filled])
	return nil
}

func (s *intakeStream) endWindow() error {
	err := s.endPiece()
	if err == nil && s.window != nil {
		close(s.window.queue)
		s.window = nil
	}
	return err
}

// finish says that all pages of the file have come.
func (s *intakeStream) finish() error {
	if err := s.endWindow(); err != nil {
		return err
	}
	delete(s.in.open, s.file)
	return nil
}

// drop gives up what has come last.
func (s *intakeStream) drop() {
	s.job = nil
	if s.window != nil {
		close(s.window.queue)
		s.window = nil
	}
}
