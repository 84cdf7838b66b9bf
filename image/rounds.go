package image

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/cores"
	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/pages"
	"github.com/cryo-project/cryo/image/segment"
)

// Rounds keeps the pages of a pre-dump: rounds that come while processes run, each with what was written to since the one before, and then
// the dump, with what was written to since the last of them. [Rounds.Complete] then makes of the newest of each page what an [Intake] would have
// taken in had there been no rounds. It takes notice of nothing but what CRIU says: which pages there are is what the dump's pagemaps list, and
// a page that is to be as it was must have been in the round before.
//
// A round is Next (or Last), and then the methods of a page server's sink, for one goroutine. They return early with the cause when something
// has gone wrong, for instance the disk is full.
type Rounds struct {
	pageSize int64
	what     string // the round, for the progress
	progress Progress
	store    *roundStore
	before   map[string]*roundMap // what the round before has, by the name of the pagemap
	now      map[string]*roundMap // what has come of this one
	order    []*roundMap          // of now, as they have begun
	at       *roundMap            // the last of them; nil: none
	old      []keptRun            // of before, what lies behind the last page of at
	end      uint64               // address behind the last page of at
	received int64                // bytes of this round
	last     bool
	ended    bool
	broken   error // what went wrong first
}

// roundMap is what there is of one pagemap.
type roundMap struct {
	name string
	file uint32
	runs []keptRun // ascending
}

// NewRounds makes ready for rounds. Pages are kept in files in dir, which have no name there. pageSize is that of the dumped processes,
// in bytes; the options are those of the [Intake]. The caller must call Close.
func NewRounds(dir string, pageSize int64, o PackOptions) (*Rounds, error) {
	o, err := o.complete(pageSize)
	if err != nil {
		return nil, err
	}
	store, err := newRoundStore(dir, pageSize, cores.Spare(o.Workers) > 0)
	if err != nil {
		return nil, full(err)
	}
	return &Rounds{pageSize: pageSize, progress: o.Progress, store: store, now: make(map[string]*roundMap)}, nil
}

// Next begins a round. what is said of it to those who watch.
func (r *Rounds) Next(what string) {
	r.what, r.received, r.ended = what, 0, false
	r.before, r.now, r.order, r.at = r.now, make(map[string]*roundMap), nil, nil
}

// Last begins the dump: processes stand still, and do not wait until all is written to the disk.
func (r *Rounds) Last() {
	r.Next("dump")
	r.last = true
}

// Has tells whether the round before has brought this pagemap.
func (r *Rounds) Has(pagemap string) bool { return r.before[pagemap] != nil }

// Begin ends the pagemap before and begins the one of this name, whose pages CRIU would have put into the pages file with this number.
func (r *Rounds) Begin(pagemap string, file uint32) error {
	if r.broken != nil {
		return r.broken
	}
	if r.now[pagemap] != nil {
		return r.failed(fmt.Errorf("keep memory: %s begins twice: %w", pagemap, errdefs.ErrInvalidArgument))
	}
	r.at = &roundMap{name: pagemap, file: file}
	r.now[pagemap] = r.at
	r.order = append(r.order, r.at)
	r.old, r.end = nil, 0
	if m := r.before[pagemap]; m != nil {
		r.old = m.runs
	}
	return nil
}

// expect says whether count pages at addr may come.
func (r *Rounds) expect(addr, count uint64) error {
	size := uint64(r.pageSize)
	switch {
	case r.broken != nil:
	case r.at == nil || r.ended:
		r.failed(fmt.Errorf("keep memory: pages of no pagemap: %w", errdefs.ErrInvalidArgument))
	case addr%size != 0 || addr < r.end || count > pages.MaxPages || addr > index.MaxAddress || addr+count*size > index.MaxAddress:
		r.failed(fmt.Errorf("keep memory: %d pages at %#x after %#x: %w", count, addr, r.end, errdefs.ErrInvalidArgument))
	default:
		r.end = addr + count*size
	}
	return r.broken
}

// Pages keeps count pages from addr on, which it reads from src. lazy says that CRIU can restore the process before it has them.
func (r *Rounds) Pages(addr, count uint64, lazy bool, src io.Reader) error {
	if err := r.expect(addr, count); err != nil {
		return err
	}
	for count > 0 {
		buf, err := r.store.space()
		if err != nil {
			return r.failed(err)
		}
		n := min(count, uint64(int64(len(buf))/r.pageSize))
		buf = buf[:int64(n)*r.pageSize]
		if _, err := io.ReadFull(src, buf); err != nil {
			return r.failed(fmt.Errorf("keep memory: %w", err))
		}
		r.keep(addr, buf, lazy)
		addr += n * uint64(r.pageSize)
		count -= n
		r.received += int64(len(buf))
		if r.progress != nil {
			r.progress(r.what, r.received, 0)
		}
	}
	return nil
}

// keep takes notes of pages that lie in the store's space. Those of zeros take none of it.
func (r *Rounds) keep(addr uint64, buf []byte, lazy bool) {
	size := r.pageSize
	used := int64(0)
	for i := int64(0); i < int64(len(buf)); i += size {
		page := buf[i : i+size]
		run := keptRun{addr: addr + uint64(i), count: 1, place: nowhere, lazy: lazy}
		if !segment.IsZero(page) {
			if used < i {
				copy(buf[used:], page)
			}
			run.place = r.store.place(used)
			used += size
		}
		r.at.runs = r.store.join(r.at.runs, run)
	}
	r.store.use(used)
}

// Unchanged takes over count pages from addr on out of the round before.
func (r *Rounds) Unchanged(addr, count uint64) error {
	if err := r.expect(addr, count); err != nil {
		return err
	}
	size := uint64(r.pageSize)
	for count > 0 {
		if r.old = after(r.old, addr, size); len(r.old) == 0 || r.old[0].addr > addr {
			return r.failed(roundError(r.at.name, addr))
		}
		part := r.old[0].part(addr, count, size)
		r.at.runs = r.store.join(r.at.runs, part)
		addr = part.end(size)
		count -= uint64(part.count)
	}
	return nil
}

// End says that all pages of this round have come. What nobody needs any more takes no more room.
func (r *Rounds) End() error {
	if r.broken != nil || r.ended {
		return r.broken
	}
	r.ended = true
	if r.last {
		return nil
	}
	if err := r.store.wait(); err != nil {
		return r.failed(err)
	}
	r.store.retain(r.order)
	return nil
}

// Received is how many bytes have come in this round.
func (r *Rounds) Received() int64 { return r.received }

// Close drops all pages.
func (r *Rounds) Close() { r.store.close() }

func (r *Rounds) failed(err error) error {
	r.broken = full(err)
	return r.broken
}

// Complete ends the dump into the images in dir: in takes in all memory, and the pagemaps say that it is there.
func (r *Rounds) Complete(ctx context.Context, dir string, in *Intake) error {
	if r.broken != nil {
		return r.broken
	}
	if !r.last || !r.ended || in.pageSize != r.pageSize {
		return fmt.Errorf("put memory together: it did not arrive completely: %w", errdefs.ErrInternal)
	}
	if err := cmp.Or(r.store.wait(), r.resolve(dir)); err != nil {
		return full(err)
	}
	in.kind.what = "pack"
	in.spill.room = 0 // what waits is in files already
	in.hurry()
	for _, m := range r.order {
		if err := in.Begin(m.file); err != nil {
			return err
		}
		for _, run := range m.runs {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if err := in.Pages(run.addr, uint64(run.count), r.store.reader(run)); err != nil {
				return err
			}
		}
	}
	return in.End()
}

// resolve rewrites the pagemaps as if there had been no rounds.
func (r *Rounds) resolve(dir string) error {
	for _, m := range r.order {
		var lazy []pages.Range
		if pid, ok := pages.PagemapPID(m.name); ok {
			var err error
			if lazy, err = pages.Lazy(dir, pid, r.pageSize); err != nil {
				return err
			}
		}
		runs := m.runs
		err := pages.Resolve(dir, m.name, r.pageSize, func(addr uint64, count int64) (parts []pages.Part, err error) {
			for count > 0 {
				if runs = after(runs, addr, uint64(r.pageSize)); len(runs) == 0 || runs[0].addr > addr {
					return nil, roundError(m.name, addr)
				}
				part := lazyPart(runs[0].part(addr, uint64(count), uint64(r.pageSize)), &lazy, r.pageSize)
				parts = joinParts(parts, part, r.pageSize)
				addr += uint64(part.Count * r.pageSize)
				count -= part.Count
			}
			return parts, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// after gives runs from the first on that does not end before addr.
func after(runs []keptRun, addr, pageSize uint64) []keptRun {
	for len(runs) > 0 && runs[0].end(pageSize) <= addr {
		runs = runs[1:]
	}
	return runs
}

func afterRange(lazy []pages.Range, addr uint64) []pages.Range {
	for len(lazy) > 0 && lazy[0].End <= addr {
		lazy = lazy[1:]
	}
	return lazy
}

// lazyPart gives the first pages of a run of which all or none can be restored after the process: CRIU must have said so when they came, and
// would say so again. A mapping may have been locked since.
func lazyPart(run keptRun, lazy *[]pages.Range, pageSize int64) pages.Part {
	*lazy = afterRange(*lazy, run.addr)
	p := pages.Part{Addr: run.addr, Count: run.count}
	if !run.lazy || len(*lazy) == 0 {
		return p
	}
	border := (*lazy)[0].Start
	if border <= run.addr {
		p.Lazy, border = true, (*lazy)[0].End
	}
	p.Count = min(p.Count, int64(border-run.addr)/pageSize)
	return p
}

func joinParts(parts []pages.Part, p pages.Part, pageSize int64) []pages.Part {
	if n := len(parts); n > 0 && parts[n-1].Lazy == p.Lazy && parts[n-1].Addr+uint64(parts[n-1].Count*pageSize) == p.Addr {
		parts[n-1].Count += p.Count
		return parts
	}
	return append(parts, p)
}
