package image

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/pages"
	"github.com/cryo-project/cryo/image/segment"
)

// Bounds of an [Intake].
const (
	// intakeSlots is how many pieces may wait in memory.
	intakeSlots = 160
	// intakeAside is how many more are on their way to the disk at once.
	intakeAside = 16
	// intakeJobs is how many may wait in all: with as many, the dump waits for hashing whatever room there is on the disk.
	intakeJobs = 1 << 16
	// intakeFiles is how many segments may be open, more where there are more workers: a disk may take long to make one durable.
	intakeFiles = 32
)

// Intake makes segments of memory while it is dumped, out of pages that come in the order in which CRIU sends them: one
// pagemap after the other, ascending addresses in each. Name it in [PackSource.Memory] to make the snapshot, which is the one
// that [Pack] would make of the same images with pages files.
//
// Pages are taken in as fast as they come: those that cannot be hashed at once wait in memory, and in a file when that is used
// up, and the stream is held up only when there is no room for them either. Pages of zeros are dropped before.
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
	jobs     chan *frameJob // in the order of the stream
	ready    chan *frameJob // the same, with slots
	memory   *slots         // for pages that arrive
	aside    *slots         // for pages that arrive and are written to the spill
	reserve  *slots         // for pages that come back from the spill
	files    chan struct{}  // one for each segment that is open
	hurried  chan struct{}  // closed when all cores shall encode
	hurry    func()         // closes it, once
	received atomic.Int64   // bytes

	// Where the stream is.
	file   uint32 // ID of the pages file, as CRIU would have numbered it
	next   int64  // number of the next page in it
	end    uint64 // address behind the last page
	job    *frameJob
	window *intakeWindow
	ended  bool
	closed bool
	broken error // what went wrong first

	results intakeResults
}

// NewIntake starts to take in memory for a snapshot in dst. What has to wait is kept in a file in dir, which has no
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
	memory, err := newSlots(intakeSlots)
	if err != nil {
		s.close()
		return nil, err
	}
	aside, err := newSlots(intakeAside)
	if err != nil {
		s.close()
		memory.release()
		return nil, err
	}
	reserve, err := newSlots(2*o.Workers + 2)
	if err != nil {
		s.close()
		memory.release()
		aside.release()
		return nil, err
	}
	in := &Intake{
		dst: dst, o: o, pageSize: pageSize, spill: s,
		jobs: make(chan *frameJob, intakeJobs), ready: make(chan *frameJob),
		memory: memory, aside: aside, reserve: reserve,
		files: make(chan struct{}, intakeFiles+o.Workers), hurried: make(chan struct{}),
		results: intakeResults{alone: make(map[windowKey]packedSegment), pooled: make(map[pieceKey]spilledFrame)},
	}
	in.ctx, in.cancel = context.WithCancel(ctx)
	in.work, in.ctx = errgroup.WithContext(in.ctx)
	in.hurry = sync.OnceFunc(func() { close(in.hurried) })
	in.work.Go(in.feed)
	for n := range o.Workers {
		in.work.Go(func() error { return in.encode(n < atOnce(o.Workers)) })
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
		f := &in.job.frame
		pages := in.job.slot[f.Raw : f.Raw+int64(n*size)]
		if _, err := io.ReadFull(r, pages); err != nil {
			return fmt.Errorf("take in memory: %w", err)
		}
		segment.Keep(f, index.Run{File: in.file, First: in.next, Count: int64(n), Addr: addr}, in.pageSize, pages)
		in.job.dumped += int64(n)
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
	if err := context.Cause(in.ctx); err != nil {
		return err
	}
	key := windowKey{file: in.file, number: addr / uint64(in.o.SegmentSize)}
	if in.window != nil && in.window.key != key {
		if err := in.endWindow(); err != nil {
			return err
		}
	}
	if in.window == nil {
		in.beginWindow(key)
	}
	if in.job != nil && addr/index.MaxFrame != in.job.number {
		if err := in.endPiece(); err != nil {
			return err
		}
	}
	if in.job != nil {
		return nil
	}
	job := &frameJob{number: addr / index.MaxFrame, home: in.memory, done: make(chan struct{})}
	if job.slot = in.memory.try(); job.slot == nil {
		var err error
		if job.slot, err = in.aside.take(in.ctx); err != nil {
			return err
		}
		job.home = in.aside
	}
	in.job = job
	return nil
}

// endPiece hands a piece, if there is one, on to be encoded, and to its window, whose queue is long enough for all its pieces. What has
// zeros only waits for nothing.
func (in *Intake) endPiece() error {
	if in.job == nil {
		return nil
	}
	if in.job.frame.Raw == 0 {
		close(in.job.done)
		in.window.queue <- in.job
		in.job = nil
		return nil
	}
	if in.job.home == in.aside {
		in.putAside(in.job)
	}
	select {
	case in.jobs <- in.job:
	default:
		in.hurry()
		select {
		case in.jobs <- in.job:
		case <-in.ctx.Done():
			return context.Cause(in.ctx)
		}
	}
	in.window.queue <- in.job
	in.job = nil
	return nil
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
		in.aside.put(job.slot)
		job.slot, job.home, job.kept = nil, in.reserve, at
		return nil
	})
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
func (in *Intake) Close() {
	if in.closed {
		return
	}
	in.closed = true
	in.cancel()
	if !in.ended {
		in.ended, in.job = true, nil
		if in.window != nil {
			close(in.window.queue)
			in.window = nil
		}
		close(in.jobs)
	}
	in.hurry()
	_ = in.work.Wait() // it was told, or nobody wants to know any more
	in.spill.close()
	in.memory.release()
	in.aside.release()
	in.reserve.release()
}

// failed notes an error, and stops everything.
func (in *Intake) failed(err error) {
	if err != nil {
		in.broken = full(err)
		in.cancel()
	}
}
