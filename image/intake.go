package image

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/pages"
	"github.com/cryo-project/cryo/image/segment"
)

// intakeSlots bounds the frames that an [Intake] holds in memory: a dump that is faster than hashing and the disk waits when
// they are used up.
const intakeSlots = 160

// intakeWindows bounds the windows that are being written, each of which has a file open.
const intakeWindows = 64

// Intake makes segments of memory while it is dumped, out of pages that come in the order in which CRIU sends them: one
// pagemap after the other, ascending addresses in each. Name it in [PackSource.Memory] to make the snapshot, which is the one
// that [Pack] would make of the same images with pages files.
//
// Begin, Pages and End are for one goroutine. They return early with the cause when something else has gone wrong, for instance
// with a [*FullError].
type Intake struct {
	ctx      context.Context // ends with the first error
	cancel   context.CancelFunc
	work     *errgroup.Group
	dst      BlobStore
	o        PackOptions
	pageSize int64
	spill    *spill
	jobs     chan *frameJob
	free     chan []byte   // slots
	unmade   int           // slots that were not needed yet
	places   chan struct{} // one for each window that is being written
	received atomic.Int64  // bytes

	// Where the stream is.
	file   uint32 // ID of the pages file, as CRIU would have numbered it
	next   int64  // number of the next page in it
	end    uint64 // address behind the last page
	job    *frameJob
	filled int64 // bytes in the job's slot
	window *intakeWindow
	ended  bool
	broken error // what went wrong first

	results intakeResults
}

// NewIntake starts to take in memory for a snapshot in dst. Frames that have to wait are kept in a file in dir, which has no
// name there. pageSize is that of the dumped processes, in bytes. The caller must call Close.
func NewIntake(ctx context.Context, dst BlobStore, dir string, pageSize int64, o PackOptions) (*Intake, error) {
	o, err := o.complete(pageSize)
	if err != nil {
		return nil, err
	}
	s, err := newSpill(dir)
	if err != nil {
		return nil, full(err)
	}
	in := &Intake{
		dst: dst, o: o, pageSize: pageSize, spill: s,
		jobs: make(chan *frameJob, intakeSlots), free: make(chan []byte, intakeSlots), unmade: intakeSlots,
		places:  make(chan struct{}, intakeWindows),
		results: intakeResults{alone: make(map[windowKey]packedSegment), pooled: make(map[pieceKey]spilledFrame)},
	}
	in.ctx, in.cancel = context.WithCancel(ctx)
	in.work, in.ctx = errgroup.WithContext(in.ctx)
	for range o.Workers {
		in.work.Go(in.encode)
	}
	return in, nil
}

// Begin ends the pagemap before and begins the one whose pages CRIU would have put into the pages file with this number.
func (in *Intake) Begin(file uint32) error {
	if in.broken == nil {
		in.failed(in.endWindow())
	}
	in.file, in.next, in.end = file, 0, 0
	return in.broken
}

// Pages takes in count pages from addr on, which it reads from r.
func (in *Intake) Pages(addr, count uint64, r io.Reader) error {
	if in.broken == nil {
		in.failed(in.add(addr, count, r))
	}
	return in.broken
}

func (in *Intake) add(addr, count uint64, r io.Reader) error {
	size := uint64(in.pageSize)
	if addr%size != 0 || addr < in.end || count > pages.MaxPages || uint64(in.next)+count > pages.MaxPages || addr > index.MaxAddress || addr+count*size > index.MaxAddress {
		return fmt.Errorf("take in memory: %d pages at %#x after %#x: %w", count, addr, in.end, errdefs.ErrInvalidArgument)
	}
	for count > 0 {
		if err := in.reach(addr); err != nil {
			return err
		}
		n := min(count, (index.MaxFrame-addr%index.MaxFrame)/size)
		if _, err := io.ReadFull(r, in.job.slot[in.filled:in.filled+int64(n*size)]); err != nil {
			return fmt.Errorf("take in memory: %w", err)
		}
		p := &in.job.piece
		if last := len(p.Runs) - 1; last >= 0 && addr == in.end {
			p.Runs[last].Count += int64(n)
		} else {
			p.Runs = append(p.Runs, pages.Run{Addr: addr, First: in.next, Count: int64(n)})
		}
		in.filled += int64(n * size)
		in.next += int64(n)
		addr += n * size
		count -= n
		in.end = addr
		if done := in.received.Add(int64(n * size)); in.o.Progress != nil {
			in.o.Progress("dump", done, 0)
		}
	}
	return nil
}

// reach makes ready for pages at addr: it ends the piece, and the window, that addr is no part of.
func (in *Intake) reach(addr uint64) error {
	key := windowKey{file: in.file, number: addr / uint64(in.o.SegmentSize)}
	if in.window != nil && in.window.key != key {
		if err := in.endWindow(); err != nil {
			return err
		}
	}
	if in.window == nil {
		if err := in.beginWindow(key); err != nil {
			return err
		}
	}
	if in.job != nil && addr/index.MaxFrame != in.job.piece.Runs[0].Addr/index.MaxFrame {
		if err := in.endPiece(); err != nil {
			return err
		}
	}
	if in.job != nil {
		return nil
	}
	slot, err := in.slot()
	if err != nil {
		return err
	}
	in.job, in.filled = &frameJob{piece: segment.Piece{File: in.file}, slot: slot, done: make(chan struct{})}, 0
	return nil
}

// slot waits for memory: this is what holds a dump up that is too fast.
func (in *Intake) slot() ([]byte, error) {
	select {
	case slot := <-in.free:
		return slot, nil
	default:
	}
	if in.unmade > 0 && in.ctx.Err() == nil {
		in.unmade--
		return make([]byte, index.MaxFrame), nil
	}
	select {
	case slot := <-in.free:
		return slot, nil
	case <-in.ctx.Done():
		return nil, context.Cause(in.ctx)
	}
}

// endPiece hands a piece, if there is one, to the workers and to its window. Neither queue is shorter than there are slots.
func (in *Intake) endPiece() error {
	if in.job == nil {
		return nil
	}
	in.jobs <- in.job
	in.window.queue <- in.job
	in.job = nil
	return context.Cause(in.ctx)
}

// End says that all memory has arrived. It does not wait until it is stored; [Pack] does.
func (in *Intake) End() error {
	if in.broken == nil && !in.ended {
		in.failed(in.endWindow())
	}
	if in.broken == nil && !in.ended {
		in.ended = true
		close(in.jobs)
	}
	return in.broken
}

// Close waits until nothing is under way any more, and drops what did not become part of a snapshot.
func (in *Intake) Close() error {
	in.cancel()
	if !in.ended {
		in.ended, in.job = true, nil
		if in.window != nil {
			close(in.window.queue)
			in.window = nil
		}
		close(in.jobs)
	}
	_ = in.work.Wait() // it was told, or nobody wants to know any more
	in.spill.close()
	return nil
}

// failed notes an error, and stops everything.
func (in *Intake) failed(err error) {
	if err != nil {
		in.broken = full(err)
		in.cancel()
	}
}
