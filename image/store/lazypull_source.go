package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
)

// FetchRange brings len(p) bytes of a segment from off on. ahead: no reader waits for them yet.
type FetchRange func(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, ahead bool) error

// PullSource is a store some of whose segments are still being pulled. A pull in this process reports to it which bytes have come: see [PullSource.Begin]. A reader
// that needs bytes earlier fetches them. They are kept, and the pull does not fetch them again.
type PullSource struct {
	// Whole has segments be there when all of each is verified, and not before. Their frames need no digests then.
	Whole bool
	// Away is called when bytes could not be fetched, and tells whether to try again. nil: never.
	Away func(ctx context.Context, err error) bool
	// Damaged is called with a segment whose bytes turned out to be damaged, before they are fetched again. nil: there is no need.
	Damaged func(d ocispec.Descriptor)
	// Turn waits until n bytes may be fetched ahead, which end ends. nil: at any time.
	Turn func(ctx context.Context, n int64) (end func(), err error)

	unstored atomic.Bool // see Unstored

	ctx   context.Context // of all reading: an io.ReaderAt takes none
	store *Store
	fetch FetchRange // brings what has not come
	file  *os.File   // without a name: what has come ahead of the rest of its segment

	mu        sync.Mutex
	segments  map[digest.Digest]*pulledSegment // guarded by mu
	followers []chan struct{}                  // of one message; guarded by mu
	end       int64                            // of file; guarded by mu
}

var (
	_ image.Fetcher  = (*PullSource)(nil)
	_ image.Arriving = (*pulledSegment)(nil)
)

// NewPullSource returns a source of a store's segments. fetch brings those that the store does not have yet. Reading ends with ctx. The exported fields are set before it is
// used. The caller must call Close.
func NewPullSource(ctx context.Context, s *Store, fetch FetchRange) (*PullSource, error) {
	f, err := os.CreateTemp(s.Root(), "ahead-")
	if err == nil {
		err = os.Remove(f.Name()) // nothing has to be cleared up after a process that was killed
	}
	if err != nil {
		return nil, fmt.Errorf("make a file for what is fetched ahead: %w", err)
	}
	return &PullSource{ctx: ctx, store: s, fetch: fetch, file: f, segments: make(map[digest.Digest]*pulledSegment)}, nil
}

// Fetch implements [image.Fetcher]. What it gives for segments implements [image.Arriving], unless all was there before the pull. The source closes it.
func (s *PullSource) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if g := s.known(d); g != nil {
		return g, nil
	}
	rc, err := s.store.Fetch(ctx, d)
	if d.MediaType != image.MediaTypeSegment || !errors.Is(err, ErrMissing) {
		return rc, err
	}
	return s.segment(d), nil
}

// known returns a segment that was opened or begun, or nil.
func (s *PullSource) known(d ocispec.Descriptor) *pulledSegment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments[d.Digest]
}

// segment returns one.
func (s *PullSource) segment(d ocispec.Descriptor) *pulledSegment {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.segments[d.Digest]
	if g == nil {
		g = &pulledSegment{source: s, d: d}
		s.segments[d.Digest] = g
	}
	return g
}

// Begin says that a segment is pulled into f, which the source closes, and that so many bytes are there.
func (s *PullSource) Begin(d ocispec.Descriptor, f *os.File, there int64) {
	s.segment(d).begin(f, there)
	s.tell()
}

// Came says that all bytes before there are in the file. They may be fewer than before: what was damaged comes again. It may be called on nil.
func (s *PullSource) Came(d ocispec.Descriptor, there int64) {
	if s == nil {
		return
	}
	s.segment(d).came(there)
	if !s.Whole {
		s.tell()
	}
}

// Unstored says that the pull cannot store what it brings, or that it is not what it should be. From now on all counts as there: a reader fetches it, whether it is
// stored or not.
func (s *PullSource) Unstored() {
	if !s.unstored.Swap(true) {
		s.tell()
	}
}

// IsUnstored reports whether [PullSource.Unstored] was called.
func (s *PullSource) IsUnstored() bool { return s.unstored.Load() }

// Verified marks that all of a segment is in the file with which it was begun last, and verified. It may be called on nil.
func (s *PullSource) Verified(d ocispec.Descriptor) error {
	if s == nil {
		return nil
	}
	defer s.tell()
	return s.segment(d).passed()
}

// Stored marks that a segment is in the store. It may be called on nil.
func (s *PullSource) Stored(ctx context.Context, d ocispec.Descriptor) error {
	if s == nil {
		return nil
	}
	g := s.known(d)
	if g == nil {
		return nil // the opener finds it there
	}
	defer s.tell()
	return g.stored(ctx)
}

// Ahead reads bytes of a segment at off that came ahead of the pull, after waiting for those that a reader fetches: n is 0 if there are none.
func (s *PullSource) Ahead(ctx context.Context, d ocispec.Descriptor, off int64, p []byte) (n int, err error) {
	g := s.segment(d)
	for {
		q := g.partAt(off)
		if q == nil {
			return 0, nil
		}
		n, err := g.take(ctx, q, p, off)
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Gap returns where the first bytes after off begin that the pull need not fetch, at most end.
func (s *PullSource) Gap(d ocispec.Descriptor, off, end int64) int64 {
	return s.segment(d).gap(off, end)
}

// tell tells followers that there is more.
func (s *PullSource) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.followers {
		select {
		case f <- struct{}{}:
		default: // it is told already
		}
	}
}

// followPause is how often [PullSource.Follow] calls arrived at most.
const followPause = 4 * time.Millisecond

// Follow calls arrived whenever more is there, until ctx ends.
func (s *PullSource) Follow(ctx context.Context, arrived func()) {
	more := make(chan struct{}, 1)
	more <- struct{}{} // of what was there before
	s.mu.Lock()
	s.followers = append(s.followers, more)
	s.mu.Unlock()
	for {
		select {
		case <-more:
			arrived()
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return
		}
	}
}

// Close closes all files. No reader and no pull may use it any more. It may be called on nil.
func (s *PullSource) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.file.Close()
	for _, g := range s.segments {
		g.close()
	}
}
