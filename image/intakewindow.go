package image

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/format"
)

// windowKey is a window of memory: its pages file, and its address divided by the segment size.
type windowKey struct {
	file   uint64
	number uint64
}

// intakeWindow is a window whose pages are arriving.
type intakeWindow struct {
	key     windowKey
	queue   chan *frameJob // all its pieces, in order
	pending []*frameJob    // those that are not encoded yet, of [intakeQueue]
}

// intakeResults are the windows that are written.
type intakeResults struct {
	mu        sync.Mutex       // guards what follows
	alone     []packedSegment  // windows that are a segment of their own
	pooled    []spilledFrame   // frames of the others
	unchanged []unchangedFrame // the parent has
}

func (in *Intake) beginWindow(key windowKey) *intakeWindow {
	w := &intakeWindow{key: key, queue: make(chan *frameJob, in.o.SegmentSize/format.MaxFrame)}
	in.work.Go(func() error { return in.write(w) })
	return w
}

// write stores the frames of a window in their order. Until so many pages have come that the window makes a segment, frames
// are kept aside; those of a window that remains small stay there. With a parent, pages count that it does not have.
func (in *Intake) write(w *intakeWindow) error {
	s := segmentWriter{dst: in.dst}
	alone, kept := false, []spilledFrame(nil)
	var unchanged []unchangedFrame
	var counted int64 // pages, those of zeros included unless there is a parent
	var err error
	for job := range w.queue {
		<-job.done
		err = cmp.Or(err, job.err)
		switch {
		case in.o.Parent == nil:
			counted += job.dumped
		case job.parent > 0:
			unchanged = append(unchanged, unchangedFrame{frame: job.frame, at: job.parent - 1})
		default:
			counted += job.frame.Raw / in.pageSize
		}
		begins := err == nil && !alone && in.alone(counted)
		if begins {
			alone = true
			err = in.unspill(in.ctx, &s, kept)
		}
		switch {
		case err != nil || len(job.stored) == 0:
		case alone:
			err = s.add(in.ctx, job.frame, job.stored)
		default:
			var f spilledFrame
			f, err = in.spill.putFrame(job.frame, job.stored)
			kept = append(kept, f)
		}
		job.home.put(job.slot)
	}
	out, err := s.end(in.ctx, err)
	if err != nil {
		return err
	}
	in.results.mu.Lock()
	defer in.results.mu.Unlock()
	in.results.unchanged = append(in.results.unchanged, unchanged...)
	switch {
	case !alone:
		in.results.pooled = append(in.results.pooled, kept...)
	case len(out.frames) > 0: // else all its pages are zeros
		in.results.alone = append(in.results.alone, out)
	}
	return nil
}

// alone reports whether a window of which so many pages count is a segment. With a parent it takes more, since segments of every increment
// add up.
func (in *Intake) alone(pages int64) bool {
	if in.o.Parent != nil {
		pages /= 4
	}
	return format.IsSegment(pages, in.pageSize, in.o.SegmentSize)
}

// unspill moves frames that were kept aside into a segment.
func (in *Intake) unspill(ctx context.Context, s *segmentWriter, kept []spilledFrame) error {
	if len(kept) == 0 {
		return nil
	}
	buf := format.LendBuffer()
	defer format.ReturnBuffer(buf)
	for _, f := range kept {
		stored, err := in.spill.takeFrame(f, buf)
		if err != nil {
			return err
		}
		if err := s.add(ctx, f.frame, stored); err != nil {
			return err
		}
	}
	return nil
}

// arrived waits until all memory is encoded, and compares its amount with that of its pagemaps.
func (in *Intake) arrived(maps []*format.Pagemap) error {
	if !in.ended || in.closed {
		return fmt.Errorf("pack memory: it did not arrive completely: %w", errdefs.ErrInternal)
	}
	if err := in.work.Wait(); err != nil {
		return err
	}
	var want int64
	for _, m := range maps {
		want += m.Count * in.pageSize
	}
	if got := in.received.Load(); got != want {
		return fmt.Errorf("pack memory: %d bytes have arrived instead of %d: %w", got, want, errdefs.ErrInternal)
	}
	return nil
}
