package arrival

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// Fetch brings len(p) bytes of a segment from off on, ahead of all that is on its way.
type Fetch func(ctx context.Context, d ocispec.Descriptor, off int64, p []byte) error

// Source is a store some of whose segments are still arriving.
type Source struct {
	ctx   context.Context // of all reading: an io.ReaderAt takes none
	store *store.Store
	fetch Fetch

	mu       sync.Mutex
	arriving []*segment // guarded by mu
}

var (
	_ image.Fetcher  = (*Source)(nil)
	_ image.Arriving = (*segment)(nil)
)

// NewSource gives a source for as long as ctx allows. Segments that are in the store already are read there.
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

// How often [Source.Follow] looks at what grows, and after how many times also at what has not begun to.
const (
	followPause = 20 * time.Millisecond
	followAll   = 5
)

// Follow calls arrived whenever more is there, until all is or ctx ends.
func (s *Source) Follow(ctx context.Context, arrived func()) {
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	for n := 0; ; n++ {
		left, more := false, false
		for _, g := range s.all() {
			before := g.there.Load()
			if before == g.d.Size {
				continue
			}
			left = true
			if before > 0 || n%followAll == 0 {
				g.look()
				more = more || g.there.Load() != before
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
	growing *store.Growing // guarded by mu
}

// look notes how much is there.
func (g *segment) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.whole.Load() != nil {
		return
	}
	if n, err := g.growing.There(); err == nil { // else the next read says what is wrong
		g.there.Store(n)
	}
}

func (g *segment) hold(ctx context.Context) error {
	rc, err := g.source.store.Fetch(ctx, g.d)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	f, ok := rc.(held)
	if !ok || !g.whole.CompareAndSwap(nil, &f) {
		return rc.Close() // never: it is held once, and the store gives files
	}
	g.there.Store(g.d.Size)
	return g.growing.Close()
}

// There implements [image.Arriving].
func (g *segment) There(end int64) bool { return g.there.Load() >= end }

// ReadAt implements [io.ReaderAt]: from what is there, otherwise it is fetched.
func (g *segment) ReadAt(p []byte, off int64) (int, error) {
	if f := g.whole.Load(); f != nil {
		return (*f).ReadAt(p, off)
	}
	if n, err := g.readGrowing(p, off); n == len(p) {
		return n, err
	}
	return g.ReadAgain(p, off)
}

func (g *segment) readGrowing(p []byte, off int64) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.whole.Load(); f != nil {
		return (*f).ReadAt(p, off)
	}
	return g.growing.ReadAt(p, off)
}

// ReadAgain implements [image.Arriving].
func (g *segment) ReadAgain(p []byte, off int64) (int, error) {
	if off < 0 || off > g.d.Size-int64(len(p)) {
		return 0, io.EOF
	}
	if f := g.whole.Load(); f != nil {
		return (*f).ReadAt(p, off)
	}
	err := g.source.fetch(g.source.ctx, g.d, off, p)
	if err == nil {
		return len(p), nil
	}
	if f := g.whole.Load(); f != nil { // it came another way meanwhile, and who was asked may have ended for that
		return (*f).ReadAt(p, off)
	}
	return 0, err
}

// Read implements [io.Reader]; segments are read by [image.Pages] only, which does not call it.
func (g *segment) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close implements [io.Closer].
func (g *segment) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.whole.Load(); f != nil {
		return (*f).Close()
	}
	return g.growing.Close()
}
