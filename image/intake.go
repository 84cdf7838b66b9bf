package image

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/format"
)

// intakeAside is how many pieces are on their way to the disk at once, beside those that wait in memory.
const intakeAside = 16

// Intake makes segments of memory while it is dumped, out of pages that come in the order in which CRIU sends them: one
// pagemap after the other, ascending addresses in each. Name it in [PackSource.Memory] to make the snapshot, which is the one
// that [Pack] would make of the same images with pages files.
//
// Pages are taken in as fast as they come: those that cannot be hashed at once wait in memory, and in a file when that is used
// up, and the stream is held up only when there is no room for them either. Pages of zeros are dropped before.
//
// Begin, Pages and End are for one goroutine. They return early with the cause when something else has gone wrong, for instance
// the disk is full.
type Intake struct {
	ctx      context.Context // ends with the first error, which is its cause
	cancel   context.CancelCauseFunc
	work     *errgroup.Group
	dst      BlobStore
	o        PackOptions
	kind     intakeKind
	pageSize int64
	spill    *spill
	waits    bool // for what encodes at once, instead of putting pages into the spill
	jobs     *intakeQueue
	feeding  sync.Mutex    // of the worker that takes a job
	memory   *slots        // for pages that arrive
	reserve  *slots        // for pages that come back from the spill
	hurried  chan struct{} // closed when all cores shall encode
	hurry    func()        // closes it, once
	received atomic.Int64  // bytes

	at     *intakeStream // the last that has begun; nil: none
	ended  bool          // by End
	closed bool

	mu   sync.Mutex
	open map[*intakeStream]struct{} // that have begun and not ended; guarded by mu

	results intakeResults
}

// NewIntake starts to take in memory for a snapshot in dst. What has to wait is kept in a file in dir, which has no
// name there. pageSize is that of the dumped processes, in bytes. The caller must call Close.
func NewIntake(ctx context.Context, dst BlobStore, dir string, pageSize int64, o PackOptions) (*Intake, error) {
	return beginIntake(ctx, dst, dir, pageSize, o, ofProcesses)
}

func beginIntake(ctx context.Context, dst BlobStore, dir string, pageSize int64, o PackOptions, kind intakeKind) (*Intake, error) {
	o, err := o.complete(pageSize)
	if err != nil {
		return nil, err
	}
	early := kind.atOnce(o.Workers)
	s, err := newSpill(dir, early > 0)
	if err != nil {
		return nil, full(err)
	}
	memory, err := newSlots(kind.slots() + intakeAside)
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
		dst: dst, o: o, kind: kind, pageSize: pageSize, spill: s, waits: early > 0 && !kind.spills,
		jobs: newIntakeQueue(o.Workers), memory: memory, reserve: reserve, open: make(map[*intakeStream]struct{}), hurried: make(chan struct{}),
	}
	in.ctx, in.cancel = context.WithCancelCause(ctx)
	in.work, in.ctx = errgroup.WithContext(in.ctx)
	in.hurry = sync.OnceFunc(func() { close(in.hurried) })
	for n := range o.Workers {
		in.work.Go(func() error { return in.encode(n < early) })
	}
	return in, nil
}

// slots is how many pieces may wait in memory on this host.
func (k intakeKind) slots() int {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return intakeAside
	}
	m, err := proc.Meminfo()
	if err != nil || m.MemAvailableBytes == nil {
		return intakeAside
	}
	return int(min(max(*m.MemAvailableBytes/4/format.MaxFrame, intakeAside), k.inMemory))
}

// Expect asks the kernel for the memory of so many bytes, which are to come: call it before processes stand still. In some virtual machines the kernel takes longer to make memory that was never used than CRIU takes to send what comes there.
func (in *Intake) Expect(bytes int64) { in.memory.touch(bytes) }

// Begin ends the pagemap before and begins the one whose pages CRIU would have put into the pages file with this number.
func (in *Intake) Begin(file uint32) error {
	if in.at != nil {
		in.at.finish()
	}
	in.at = in.stream(uint64(file))
	return in.failure()
}

// Pages takes in count pages from addr on, which it reads from r.
func (in *Intake) Pages(addr, count uint64, r io.Reader) error {
	if in.at == nil {
		in.failed(fmt.Errorf("take in memory: pages of no pagemap: %w", errdefs.ErrInvalidArgument))
	} else {
		in.failed(in.at.add(addr, count, r))
	}
	return in.failure()
}

// Hurry lets all cores encode: no process stands still any more. [Pack] does so, too. Of nothing, it does nothing.
func (in *Intake) Hurry() {
	if in != nil {
		in.hurry()
	}
}

// End ends the intake: no more memory comes. It does not wait. [Pack] waits until all memory is stored.
func (in *Intake) End() error {
	if in.ended {
		return nil
	}
	for _, s := range in.streams() {
		s.finish()
	}
	if err := in.failure(); err != nil {
		return err
	}
	in.ended = true
	in.jobs.end()
	return nil
}

// Close waits until nothing is under way any more, and drops what did not become part of a snapshot.
func (in *Intake) Close() {
	if in.closed {
		return
	}
	in.closed = true
	in.cancel(nil)
	if !in.ended {
		for _, s := range in.streams() {
			s.finish()
		}
		in.jobs.end()
	}
	in.hurry()
	_ = in.work.Wait() // it was told, or its result is not wanted any more
	in.spill.close()
	in.memory.release()
	in.reserve.release()
}

// failed notes an error, unless there is one already, and stops everything.
func (in *Intake) failed(err error) {
	if err != nil {
		in.cancel(err)
	}
}

// failure is what went wrong first.
func (in *Intake) failure() error { return full(context.Cause(in.ctx)) }

// streams are those that have begun and not ended.
func (in *Intake) streams() []*intakeStream {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Collect(maps.Keys(in.open))
}
