package image

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/format"
)

// intakeStream is where the pages of one file are that arrive, by ascending addresses.
type intakeStream struct {
	in     *Intake
	file   uint64 // ID of the pages file, as CRIU would have numbered it, or of device memory
	next   int64  // number of the next page in it
	end    uint64 // address behind the last page
	job    *frameJob
	window *intakeWindow
}

// stream begins a file.
func (in *Intake) stream(file uint64) *intakeStream {
	s := &intakeStream{in: in, file: file}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open[s] = struct{}{}
	return s
}

// add takes in count pages from addr on, which it reads from r.
func (s *intakeStream) add(addr, count uint64, r io.Reader) error {
	in, size := s.in, uint64(s.in.pageSize)
	if addr%size != 0 || addr < s.end || count > format.MaxFilePages || uint64(s.next)+count > format.MaxFilePages || addr > format.MaxAddress || addr+count*size > format.MaxAddress {
		return fmt.Errorf("take in memory: %d pages at %#x after %#x: %w", count, addr, s.end, errdefs.ErrInvalidArgument)
	}
	for count > 0 {
		if err := s.reach(addr); err != nil {
			return err
		}
		n := min(count, (format.MaxFrame-addr%format.MaxFrame)/size)
		if r != nil {
			f := &s.job.frame
			pages := s.job.slot[f.Raw : f.Raw+int64(n*size)]
			if _, err := io.ReadFull(r, pages); err != nil {
				return fmt.Errorf("take in memory: %w", err)
			}
			format.KeepPages(f, format.Run{File: s.file, First: s.next, Count: int64(n), Addr: addr}, in.pageSize, pages)
		}
		s.job.dumped += int64(n)
		s.next += int64(n)
		addr += n * size
		count -= n
		s.end = addr
		if done := in.received.Add(int64(n * size)); in.o.Progress != nil {
			in.o.Progress(in.kind.what, done, 0)
		}
	}
	return nil
}

// skip passes over count pages from addr on, which are taken in elsewhere.
func (s *intakeStream) skip(addr, count uint64) {
	s.endPiece()
	bytes := int64(count) * s.in.pageSize
	s.next += int64(count)
	s.end = addr + uint64(bytes)
	if done := s.in.received.Add(bytes); s.in.o.Progress != nil {
		s.in.o.Progress(s.in.kind.what, done, 0)
	}
}

// reach makes ready for pages at addr: it ends the piece, and the window, that addr is no part of.
func (s *intakeStream) reach(addr uint64) error {
	in := s.in
	if err := context.Cause(in.ctx); err != nil {
		return err
	}
	key := windowKey{file: s.file, number: addr / uint64(in.o.SegmentSize)}
	if s.window != nil && s.window.key != key {
		s.endWindow()
	}
	if s.window == nil {
		s.window = in.beginWindow(key)
	}
	if s.job != nil && addr/format.MaxFrame != s.job.number {
		s.endPiece()
	}
	if s.job != nil {
		return nil
	}
	slot, err := in.place()
	if err != nil {
		return err
	}
	s.job = &frameJob{number: addr / format.MaxFrame, slot: slot, home: in.memory, done: make(chan struct{})}
	return nil
}

// place finds a slot for pages that arrive. Where many files are open at once, they may hold all that there are: then pieces must be encoded before
// there is another.
func (in *Intake) place() ([]byte, error) {
	if slot := in.memory.try(); slot != nil {
		return slot, nil
	}
	in.mu.Lock()
	many := len(in.open) >= intakeAside
	in.mu.Unlock()
	if many && !in.waits {
		in.hurry()
	}
	return in.memory.take(in.ctx)
}

// endPiece hands a piece, if there is one, on to be encoded, and to its window, whose queue is long enough for all its pieces.
func (s *intakeStream) endPiece() {
	if s.job == nil {
		return
	}
	in := s.in
	if s.job.frame.Raw == 0 { // zeros only wait for nothing, and keep no place while those before them wait
		s.job.home.put(s.job.slot)
		s.job.slot = nil
		close(s.job.done)
		s.window.queue <- s.job
		s.job = nil
		return
	}
	if in.memory.left() < intakeAside && !in.waits {
		in.putAside(s.job)
	}
	in.jobs.put(s.job, s.window)
	s.window.queue <- s.job
	s.job = nil
}

// putAside has the pages of a job moved into the spill while the stream goes on. Where that has no room, they stay where they are, and the
// stream will wait for others to be encoded.
func (in *Intake) putAside(job *frameJob) {
	job.aside = make(chan struct{})
	in.work.Go(func() error {
		defer close(job.aside)
		at, ok, err := in.spill.putPages(job.slot[:job.frame.Raw])
		if err != nil {
			return err
		}
		if !ok {
			in.hurry()
			return nil
		}
		in.memory.put(job.slot)
		job.slot, job.home, job.kept = nil, in.reserve, at
		return nil
	})
}

func (s *intakeStream) endWindow() {
	s.endPiece()
	if s.window != nil {
		close(s.window.queue)
		s.window = nil
	}
}

// finish says that all pages of the file have come.
func (s *intakeStream) finish() {
	s.endWindow()
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	delete(s.in.open, s)
}
