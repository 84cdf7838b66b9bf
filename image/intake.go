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

	"github.com/cryo-project/cryo/image/index"
)

// Bounds of an [Intake].
const (
	// intakeSlots is how many pieces may wait in memory, where a quarter of what the kernel can give has room for them: small containers go
	// into memory as a whole.
	intakeSlots = 384
	// intakeAside is how many more are on their way to the disk at once.
	intakeAside = 16
	// intakeJobs is how many may wait in all: with as many, the dump waits for hashing whatever room there is on the disk.
	intakeJobs = 1 << 16
	// intakeFiles is how many segments may be open, more where there are more workers: a disk may take long to make one durable. It is more
	// than may be begun and wait for pages that come side by side, of as many devices as there can be.
	intakeFiles = 96
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
	kind     intakeKind
	pageSize int64
	spill    *spill
	waits    bool // for what encodes at once, instead of putting pages into the spill
	jobs     *intakeQueue
	ready    chan *frameJob // the same, with slots
	memory   *slots         // for pages that arrive
	aside    *slots         // for pages that arrive and are written to the spill
	reserve  *slots         // for pages that come back from the spill
	files    chan struct{}  // one for each segment that is open
	hurried  chan struct{}  // closed when all cores shall encode
	hurry    func()         // closes it, once
	received atomic.Int64   // bytes

	at     *intakeStream // the last that has begun; nil: none
	ended  bool
	closed bool

	mu     sync.Mutex
	open   map[*intakeStream]struct{} // that have begun and not ended; guarded by mu
	broken error                      // what went wrong first; guarded by mu

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
	memory, err := newSlots(inMemory())
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
		dst: dst, o: o, kind: kind, pageSize: pageSize, spill: s, waits: early > 0 && !kind.spills,
		jobs: newIntakeQueue(o.Workers, intakeJobs), ready: make(chan *frameJob),
		memory: memory, aside: aside, reserve: reserve, open: make(map[*intakeStream]struct{}),
		files: make(chan struct{}, intakeFiles+o.Workers), hurried: make(chan struct{}),
	}
	in.ctx, in.cancel = context.WithCancel(ctx)
	in.work, in.ctx = errgroup.WithContext(in.ctx)
	in.hurry = sync.OnceFunc(func() { close(in.hurried) })
	in.work.Go(in.feed)
	for n := range o.Workers {
		in.work.Go(func() error { return in.encode(n < early) })
	}
	return in, nil
}

// inMemory is how many pieces may wait in memory on this host.
func inMemory() int {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return intakeAside
	}
	m, err := proc.Meminfo()
	if err != nil || m.MemAvailableBytes == nil {
		return intakeAside
	}
	return int(min(max(*m.MemAvailableBytes/4/index.MaxFrame, intakeAside), intakeSlots))
}

// Begin ends the pagemap before and begins the one whose pages CRIU would have put into the pages file with this number.
func (in *Intake) Begin(file uint32) error {
	if in.failure() == nil && in.at != nil {
		in.failed(in.at.finish())
	}
	if err := in.failure(); err != nil {
		return err
	}
	in.at = in.stream(uint64(file))
	return nil
}

// Pages takes in count pages from addr on, which it reads from r.
func (in *Intake) Pages(addr, count uint64, r io.Reader) error {
	switch {
	case in.failure() != nil:
	case in.at == nil:
		in.failed(fmt.Errorf("take in memory: pages of no pagemap: %w", errdefs.ErrInvalidArgument))
	default:
		in.failed(in.at.add(addr, count, r))
	}
	return in.failure()
}

// Hurry lets all cores encode: nobody stands still any more. [Pack] does so, too. Of nothing, it does nothing.
func (in *Intake) Hurry() {
	if in != nil {
		in.hurry()
	}
}

// End says that all memory has arrived. It does not wait until it is stored; [Pack] does.
func (in *Intake) End() error {
	for _, s := range in.streams() {
		if in.failure() == nil && !in.ended {
			in.failed(s.finish())
		}
	}
	if in.failure() == nil && !in.ended {
		in.ended = true
		in.jobs.end()
	}
	return in.failure()
}

// Close waits until nothing is under way any more, and drops what did not become part of a snapshot.
func (in *Intake) Close() {
	if in.closed {
		return
	}
	in.closed = true
	in.cancel()
	if !in.ended {
		in.ended = true
		for _, s := range in.streams() {
			s.drop()
		}
		in.jobs.end()
	}
	in.hurry()
	_ = in.work.Wait() // it was told, or nobody wants to know any more
	in.spill.close()
	in.memory.release()
	in.aside.release()
	in.reserve.release()
}

// failed notes an error, unless there is one already, and stops everything.
func (in *Intake) failed(err error) {
	if err == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.broken == nil {
		in.broken = full(err)
	}
	in.cancel()
}

// failure is what went wrong first.
func (in *Intake) failure() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.broken
}

// streams are those that have begun and not ended.
func (in *Intake) streams() []*intakeStream {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Collect(maps.Keys(in.open))
}
