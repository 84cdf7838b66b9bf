package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/direct"
)

// growingPause is how long [Growing] waits before it looks again.
const growingPause = 5 * time.Millisecond

// Growing is a blob that may be on its way into the store, by the hands of this process or another. Its bytes arrive in their
// order. They are not verified before all are there, so whoever reads earlier must verify what it reads by itself. Its methods may be
// called from several goroutines at once, but for Close.
type Growing struct {
	s *Store
	d ocispec.Descriptor

	mu    sync.Mutex
	f     *os.File       // nil: nothing is there yet; guarded by mu
	file  *direct.File   // f, past the page cache; guarded by mu
	there int64          // what There has found; guarded by mu
	old   []*direct.File // what f was before, which somebody may still read; guarded by mu
}

// Growing gives a blob that is there, that is being fetched, or that will be. The caller must call Close.
func (s *Store) Growing(d ocispec.Descriptor) (*Growing, error) {
	if err := checkDescriptor(d); err != nil {
		return nil, &CorruptError{What: "descriptor", Err: err}
	}
	return &Growing{s: s, d: d}, nil
}

// There is how many bytes from the begin of the blob can be read now. It may be less than before where what had arrived was
// found damaged and is fetched again.
func (g *Growing) There() (n int64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.there, err = g.look()
	return g.there, err
}

// look looks how many there are. g.mu is held.
func (g *Growing) look() (int64, error) {
	for range 3 { // the blob moves once, from where it grows to where it is whole
		for _, path := range []string{filepath.Join(g.s.partial(), g.d.Digest.Encoded()), g.s.blobPath(g.d.Digest)} {
			if g.f == nil && (path != g.s.blobPath(g.d.Digest) || !g.s.Suspects([]ocispec.Descriptor{g.d})) { // else the pull verifies it, or brings it anew
				f, err := os.Open(path)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return 0, fmt.Errorf("open blob %s: %w", g.d.Digest, mapError(g.s.root, err))
				}
				g.f, g.file = f, direct.New(f)
			}
		}
		if g.f == nil {
			return 0, nil
		}
		i, err := g.f.Stat()
		if err != nil {
			return 0, fmt.Errorf("look at blob %s: %w", g.d.Digest, err)
		}
		if Still(g.f, filepath.Join(g.s.partial(), g.d.Digest.Encoded())) || Still(g.f, g.s.blobPath(g.d.Digest)) {
			return min(i.Size(), g.d.Size), nil
		}
		// Somebody else has brought the blob, or begins anew.
		g.old = append(g.old, g.file)
		g.f = nil
	}
	return 0, nil
}

// Wait waits until the first n bytes are there, as long as ctx allows: whoever knows that nobody fetches the blob any more ends
// ctx.
func (g *Growing) Wait(ctx context.Context, n int64) error {
	if n > g.d.Size {
		return &CorruptError{What: "blob " + g.d.Digest.String(), Err: fmt.Errorf("it has %d bytes, not %d", g.d.Size, n)}
	}
	for {
		there, err := g.There()
		if err != nil || there >= n {
			return err
		}
		t := time.NewTimer(growingPause)
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("wait for blob %s: %w", g.d.Digest, context.Cause(ctx))
		case <-t.C:
		}
	}
}

// ReadAt implements [io.ReaderAt] for what [Growing.There] has found last; what is not there gives [io.ErrUnexpectedEOF].
func (g *Growing) ReadAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	g.mu.Lock()
	file, there := g.file, g.there
	g.mu.Unlock()
	if off < 0 || off+int64(len(p)) > there {
		return 0, io.ErrUnexpectedEOF
	}
	return file.ReadAt(p, off)
}

// Close implements [io.Closer].
func (g *Growing) Close() (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.f != nil {
		err = g.file.Close()
	}
	for _, f := range g.old {
		err = errors.Join(err, f.Close())
	}
	return err
}
