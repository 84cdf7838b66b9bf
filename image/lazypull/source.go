package lazypull

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	frames "github.com/cryo-project/cryo/image/segment"
	"github.com/cryo-project/cryo/image/store"
)

// Fetch brings len(p) bytes of a segment from off on.
type Fetch func(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, why Why) error

// Why bytes are fetched.
type Why int

const (
	Wanted  Why = iota // somebody waits for them: they go ahead of all that is on its way
	Ahead              // somebody will want them soon
	Damaged            // they have come, and were damaged: they are to come from the registry once more
)

// Source is a store some of whose segments are still arriving.
type Source struct {
	// Whole has segments be there when all of each is verified, and not before. Their frames need no digests then.
	Whole bool
	// Away is called when bytes could not be fetched, and tells whether to try again. nil: never.
	Away func(ctx context.Context, err error) bool

	ctx   context.Context // of all reading: an io.ReaderAt takes none
	store *store.Store
	fetch Fetch // brings what has not come

	mu       sync.Mutex
	arriving []*segment // guarded by mu
	verified []verified // guarded by mu
}

var (
	_ image.Fetcher  = (*Source)(nil)
	_ image.Arriving = (*segment)(nil)
)

// NewSource returns a source of a store's segments. fetch brings those that the store does not have yet. Reading ends with ctx. The exported fields are set before it is used.
func NewSource(ctx context.Context, s *store.Store, fetch Fetch) *Source {
	return &Source{ctx: ctx, store: s, fetch: fetch}
}

// Fetch implements [image.Fetcher]. What it gives for segments implements [image.Arriving], unless all is there.
func (s *Source) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	rc, err := s.store.Fetch(ctx, d)
	var missing *store.MissingError
	if d.MediaType != image.MediaTypeSegment || !errors.As(err, &missing) {
		return rc, err
	}
	growing, err := s.store.Growing(d)
	if err != nil {
		return nil, err
	}
	g := &segment{source: s, d: d, growing: growing}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := g.known(s.verified); err != nil {
		return nil, err
	}
	s.arriving = append(s.arriving, g)
	return g, nil
}

// Hold opens all that was arriving, now that it is in the store: what becomes of the store afterwards does no harm.
func (s *Source) Hold(ctx context.Context) error {
	for _, g := range s.all() {
		if err := g.hold(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Source) all() []*segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*segment(nil), s.arriving...)
}

// How often [Source.Follow] looks at what grows and at the next segments that have not begun to, which come in their order, and after how
// many times at all.
const (
	followPause = 4 * time.Millisecond
	followNext  = 16
	followAll   = 25
)

// Follow calls arrived whenever more is there, until all is or ctx ends.
func (s *Source) Follow(ctx context.Context, arrived func()) {
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	told := make(map[*segment]int64)
	for n := 0; ; n++ {
		left, more, next := false, false, followNext
		for _, g := range s.all() {
			if told[g] == g.d.Size {
				continue
			}
			left = true
			if g.there.Load() == 0 {
				next--
			}
			if next >= 0 || n%followAll == 0 {
				g.look()
			}
			// Who reads looks as well.
			if there := g.there.Load(); there != told[g] {
				told[g], more = there, true
			}
		}
		if more {
			arrived()
		}
		if !left {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// held is what the store gives for a whole segment.
type held interface {
	io.ReaderAt
	io.Closer
}

// segment is one that was not in the store when it was opened.
type segment struct {
	source *Source
	d      ocispec.Descriptor
	there  atomic.Int64         // bytes from the begin, when it was last looked
	whole  atomic.Pointer[held] // in the store; nil: not yet

	mu      sync.Mutex
	growing *store.Growing // nil: it is not needed any more; guarded by mu
	uses    int            // of growing; guarded by mu
}

// grown gives what grows, unless all is there, until done is called.
func (g *segment) grown() (growing *store.Growing, done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.whole.Load() != nil {
		return nil, nil
	}
	g.uses++
	return g.growing, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.uses--
		g.let()
	}
}

// let closes what has grown when nobody uses it any more. g.mu is held.
func (g *segment) let() {
	if g.uses == 0 && g.whole.Load() != nil && g.growing != nil {
		_ = g.growing.Close() // nothing was written
		g.growing = nil
	}
}

// look notes how much is there.
func (g *segment) look() {
	growing, done := g.grown()
	if growing == nil {
		return
	}
	defer done()
	if n, err := growing.There(); err == nil { // else the next read says what is wrong
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.whole.Load() == nil && !g.source.Whole {
			g.there.Store(n)
		}
	}
}

func (g *segment) hold(ctx context.Context) error {
	if g.whole.Load() != nil {
		return nil
	}
	rc, err := g.source.store.Fetch(ctx, g.d)
	if err != nil {
		return err
	}
	return g.have(rc)
}

// have takes rc for all of the segment.
func (g *segment) have(rc io.ReadCloser) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, ok := rc.(held)
	if !ok || !g.whole.CompareAndSwap(nil, &f) {
		return rc.Close() // somebody else was faster; the store gives files
	}
	g.there.Store(g.d.Size)
	g.let()
	return nil
}

// Verified gives the segment where all of it is in the store by now, and the store says that it was verified when it came in: it is as
// good as one that was there before.
func (g *segment) Verified() (frames.Verified, bool) {
	f := g.whole.Load()
	if f == nil {
		return frames.Verified{}, false
	}
	v, ok := (*f).(frames.Verified)
	return v, ok
}

// There implements [image.Arriving].
func (g *segment) There(end int64) bool { return g.there.Load() >= end }

// ReadAt implements [io.ReaderAt]: from what is there, otherwise it is fetched.
func (g *segment) ReadAt(p []byte, off int64) (int, error) { return g.read(p, off, Wanted) }

// ReadAhead implements [image.Arriving].
func (g *segment) ReadAhead(p []byte, off int64) (int, error) { return g.read(p, off, Ahead) }

func (g *segment) read(p []byte, off int64, why Why) (int, error) {
	if f := g.whole.Load(); f != nil {
		return (*f).ReadAt(p, off)
	}
	if !g.There(off + int64(len(p))) {
		g.look()
	}
	if growing, done := g.grown(); growing != nil {
		defer done()
		if n, err := growing.ReadAt(p, off); n == len(p) {
			return n, err
		}
	}
	return g.fetch(p, off, why)
}

// ReadAgain implements [image.Arriving].
func (g *segment) ReadAgain(p []byte, off int64) (int, error) { return g.fetch(p, off, Damaged) }

func (g *segment) fetch(p []byte, off int64, why Why) (int, error) {
	if off < 0 || off > g.d.Size-int64(len(p)) {
		return 0, io.EOF
	}
	if f := g.whole.Load(); f != nil {
		return (*f).ReadAt(p, off)
	}
	ctx := g.source.ctx
	for {
		err := g.source.fetch(ctx, g.d, off, p, why)
		if err == nil {
			return len(p), nil
		}
		again := ctx.Err() == nil && g.source.Away != nil && g.source.Away(ctx, err)
		if again {
			_ = g.hold(ctx) // another process may have brought it
		}
		if f := g.whole.Load(); f != nil { // it came another way meanwhile, and who was asked may have ended for that
			return (*f).ReadAt(p, off)
		}
		if !again {
			return 0, err
		}
	}
}

// Read implements [io.Reader]; segments are read by [image.Pages] only, which does not call it.
func (g *segment) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close implements [io.Closer].
func (g *segment) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.growing != nil {
		_ = g.growing.Close() // nothing was written
		g.growing = nil
	}
	if f := g.whole.Load(); f != nil {
		return (*f).Close()
	}
	return nil
}
