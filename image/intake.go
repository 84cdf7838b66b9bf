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
// up, and the stream is held up only when there is no room for them either.
//
// Begin, Pages and End are for one goroutine. They return early with the cause when something else has gone wrong, for instance
// with a [*FullError].
type Intake struct {
	ctx      context.Context // ends with the first error
	cancel   context.CancelFunc
	work     *errgroup.Group
	dst      BlobStore
	o        PackOptions
	what     string // that is taken in, for the progress
	pageSize int64
	spill    *spill
	jobs     chan *frameJob // in the order of the stream
	ready    chan *frameJob // the same, with slots
	memory   *slots         // for pages that arrive
	reserve  *slots         // for pages that come back from the spill
	files    chan struct{}  // one for each segment that is open
	hurried  chan struct{}  // closed when all cores shall encode
	hurry    func()         // closes it, once
	received atomic.Int64   // bytes

	// Where the stream is.
	file    uint64 // ID of the pages file, as CRIU would have numbered it
	next    int64  // number of the next page in it
	end     uint64 // address behind the last page
	job     *frameJob
	staging []byte // the slot of a job that has none
	filled  int64  // bytes in the job's slot
	window  *intakeWindow
	ended   bool
	closed  bool
	broken  error // what went wrong first

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
	reserve, err := newSlots(2*o.Workers + 2)
	if err != nil {
		s.close()
		memory.release()
		return nil, err
	}
	in := &Intake{
		dst: dst, o: o, what: "dump", pageSize: pageSize, spill: s,
		jobs: make(chan *frameJob, intakeJobs), ready: make(chan *frameJob),
		memory: memory, reserve: reserve, staging: make([]byte, index.MaxFrame),
		files: make(chan struct{}, intakeFiles+o.Workers), hurried: make(chan struct{}),
		results: intakeResults{alone: make(map[windowKey]packedSegment), pooled: make(map[pieceKey]spilledFrame)},
	}
	in.ctx, in.cancel = context.WithCancel(ctx)
	in.work, in.ctx = errgroup.WithContext(in.ctx)
	in.hurry = sync.OnceFunc(func() { close(in.hurried) })
	in.work.Go(in.feed)
	for n := range o.Workers {
		in.work.Go(func() error { return in.encode(n < o.Workers-dumpCores) })
	}
	return in, nil
}

// Begin ends the pagemap before and begins the one whose pages CRIU would have put into the pages file with this number.
func (in *Intake) Begin(file uint32) error { return in.begin(uint64(file)) }

func (in *Intake) begin(file uint64) error {
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
		if _, err := io.ReadFull(r, in.place()[in.filled:in.filled+int64(n*size)]); err != nil {
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
			in.o.Progress(in.what, done, 0)
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
	if in.job != nil && addr/index.MaxFrame != in.job.piece.Runs[0].Addr/index.MaxFrame {
		if err := in.endPiece(); err != nil {
			return err
		}
	}
	if in.job != nil {
		return nil
	}
	in.job = &frameJob{piece: segment.Piece{File: in.file}, slot: in.memory.try(), home: in.memory, done: make(chan struct{})}
	in.filled = 0
	return nil
}

// place is where the pages of the job go.
func (in *Intake) place() []byte {
	if in.job.slot == nil {
		return in.staging
	}
	return in.job.slot
}

// endPiece hands a piece, if there is one, on to be encoded, and to its window, whose queue is long enough for all its pieces.
func (in *Intake) endPiece() error {
	if in.job == nil {
		return nil
	}
	if in.job.slot == nil {
		if err := in.putAside(); err != nil {
			return err
		}
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

// putAside moves the pages of a job without a slot into the spill. Where that has no room, the stream waits for a slot.
func (in *Intake) putAside() (err error) {
	var ok bool
	if in.job.kept, ok, err = in.spill.putPages(in.staging[:in.filled]); ok || err != nil {
		in.job.home = in.reserve
		return err
	}
	in.hurry()
	if in.job.slot, err = in.memory.take(in.ctx); err != nil {
		return err
	}
	copy(in.job.slot, in.staging[:in.filled])
	return nil
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
	in.reserve.release()
}

// failed notes an error, and stops everything.
func (in *Intake) failed(err error) {
	if err != nil {
		in.broken = full(err)
		in.cancel()
	}
}
