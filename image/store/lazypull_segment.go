package store

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// pulledSegment is a segment of a snapshot that was not in the store when it was opened, or when the pull came to it.
type pulledSegment struct {
	source *PullSource
	d      ocispec.Descriptor
	there  atomic.Int64                  // how many bytes, from the first on, can be read from grows; changed with mu held
	whole  atomic.Pointer[pulledContent] // all of it, verified; nil: not yet

	mu    sync.Mutex
	file  *os.File               // into which it is pulled; nil: it is not; guarded by mu
	grows *format.DirectReader   // of file; guarded by mu
	old   []*format.DirectReader // earlier values of grows, from which a reader may still read; guarded by mu
	parts []*pulledPart          // by offset, without overlap; guarded by mu
}

// pulledContent is the reader that the store returns for a whole segment.
type pulledContent interface {
	io.ReaderAt
	io.Closer
}

func (g *pulledSegment) begin(f *os.File, there int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.grows != nil { // of an attempt that has failed
		g.old = append(g.old, g.grows)
	}
	g.file, g.grows = f, format.NewDirectReader(f)
	g.there.Store(there)
}

func (g *pulledSegment) came(there int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.there.Store(there)
	g.forget(there)
}

// passed marks that the file has all of the segment, verified.
func (g *pulledSegment) passed() error {
	g.mu.Lock()
	f := g.file
	g.mu.Unlock()
	return g.have(g.source.store.OpenVerified(g.d, f))
}

// stored opens the segment in the store, which has all of it.
func (g *pulledSegment) stored(ctx context.Context) error {
	return g.have(g.source.store.Fetch(ctx, g.d))
}

// have reads the segment from rc from now on.
func (g *pulledSegment) have(rc io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	f, ok := rc.(pulledContent)
	if !ok || !g.whole.CompareAndSwap(nil, &f) {
		return rc.Close() // another reader was faster; the store gives files
	}
	g.came(g.d.Size)
	return nil
}

func (g *pulledSegment) close() {
	if f := g.whole.Load(); f != nil {
		(*f).Close()
	}
	for _, f := range append(g.old, g.grows) {
		if f != nil {
			f.Close() // once more, where that is the whole
		}
	}
}

// Verified returns the segment if all of it was verified here and only root can have written to it. It is then as good as one that was in the store before.
func (g *pulledSegment) Verified() (format.Verified, bool) {
	f := g.whole.Load()
	if f == nil {
		return format.Verified{}, false
	}
	v, ok := (*f).(format.Verified)
	return v, ok
}

// There implements [image.Arriving].
func (g *pulledSegment) There(end int64) bool {
	return g.whole.Load() != nil || g.source.unstored.Load() || !g.source.Whole && g.there.Load() >= end
}

// ReadAt implements [io.ReaderAt]. It fetches what has not come.
func (g *pulledSegment) ReadAt(p []byte, off int64) (int, error) {
	return g.again(p, off, func(ctx context.Context) error { return g.read(ctx, p, off, false) })
}

// ReadAhead implements [image.Arriving].
func (g *pulledSegment) ReadAhead(p []byte, off int64) (int, error) {
	if g.source.Turn == nil || g.There(off+int64(len(p))) {
		return g.ReadAt(p, off)
	}
	return g.again(p, off, func(ctx context.Context) error {
		end, err := g.source.Turn(ctx, int64(len(p)))
		if err != nil {
			return err
		}
		defer end()
		return g.read(ctx, p, off, true)
	})
}

// damagedTries is how often bytes are fetched again that are not what they should be, in some seconds: what a proxy or a cache serves once may be right the next time.
const damagedTries = 5

// Again implements [image.Arriving].
func (g *pulledSegment) Again(tries int, err error) bool {
	ctx := g.source.ctx
	switch {
	case tries == 0:
		return true
	case tries >= damagedTries || g.source.Away == nil || !g.source.Away(ctx, err):
		return false
	}
	_ = g.stored(ctx) // another process may have brought the right ones
	return true
}

// ReadAgain implements [image.Arriving].
func (g *pulledSegment) ReadAgain(p []byte, off int64) (int, error) {
	g.drop(off, off+int64(len(p)))
	if g.source.Damaged != nil {
		g.source.Damaged(g.d)
	}
	return g.again(p, off, func(ctx context.Context) error { return g.source.fetch(ctx, g.d, off, p, false) })
}

// again calls read until it succeeds, as often as [PullSource.Away] allows.
func (g *pulledSegment) again(p []byte, off int64, read func(ctx context.Context) error) (int, error) {
	if off < 0 || off > g.d.Size-int64(len(p)) {
		return 0, io.EOF
	}
	ctx := g.source.ctx
	for {
		if f := g.whole.Load(); f != nil {
			return (*f).ReadAt(p, off)
		}
		err := read(ctx)
		if err == nil {
			return len(p), nil
		}
		again := ctx.Err() == nil && g.source.Away != nil && g.source.Away(ctx, err)
		if again {
			_ = g.stored(ctx) // another process may have brought it
		}
		if g.whole.Load() == nil && !again { // else the process that was asked may have ended since it came another way
			return 0, err
		}
	}
}

// Read implements [io.Reader]; segments are read by [image.Pages] only, which does not call it.
func (g *pulledSegment) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close implements [io.Closer]. Others may read the same segment, which the source closes.
func (g *pulledSegment) Close() error { return nil }
