package registry

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/store"
)

// Lazy is how segments are pulled for a container that is restored meanwhile, which needs the cores, the disk and the line for something else.
type Lazy struct {
	// Source is told of what comes, and has what came ahead of the pull. The registry must serve parts of blobs.
	Source *store.PullSource
	// Head is how many segments are pulled at once until the container runs; negative: as many as ever.
	Head int
	// Running is closed when the container runs. The snapshot gets no name before.
	Running <-chan struct{}
	// Filled is closed when its memory is in place. Until then segments that go through the page cache are not hashed: their reader verifies what it reads. Those
	// of a source that has them as wholes are.
	Filled <-chan struct{}

	head    chan struct{} // has a place for each segment that is pulled before the container runs
	hashing chan struct{} // likewise for those that are hashed
	rest    time.Duration // see restTime
}

const (
	// restTime is the longest that a segment that has come waits to be hashed and stored: another process may want it, and have one that this process waits for.
	restTime = 2 * time.Second
	// storingMost is how many segments may have come that the store does not have yet. Each has its file open.
	storingMost = 1024
	// verifiersMost is how many goroutines hash at once. Each has a buffer.
	verifiersMost = 16
)

// Lazily has Finish pull for a container that is restored meanwhile.
func (p *Puller) Lazily(l Lazy) {
	if l.Head >= 0 {
		l.head = make(chan struct{}, l.Head)
	}
	l.rest = cmp.Or(l.rest, restTime)
	l.hashing = make(chan struct{}, min(runtime.GOMAXPROCS(0), verifiersMost))
	p.lazy = &l
}

// source may be nil.
func (p *Puller) source() *store.PullSource {
	if p.lazy == nil {
		return nil
	}
	return p.lazy.Source
}

// enter waits until one more segment may be pulled. leave is called when it is.
func (l *Lazy) enter(ctx context.Context) (leave func(), err error) {
	if l == nil || l.head == nil {
		return func() {}, nil
	}
	select {
	case <-l.Running:
		return func() {}, nil
	case l.head <- struct{}{}:
		return func() { <-l.head }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// running waits until the container runs.
func (l *Lazy) running(ctx context.Context) error {
	if l == nil {
		return nil
	}
	select {
	case <-l.Running:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// calm waits, for a moment at most, until the container needs the disk no more, or, unless it is hashed, the cores.
func (l *Lazy) calm(ctx context.Context, hashed bool) error {
	until := l.Filled
	if hashed {
		until = l.Running
	}
	late := time.NewTimer(l.rest)
	defer late.Stop()
	select {
	case <-until:
	case <-late.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// bring pulls the segments. That the store has one is not waited for before another is begun.
func (p *Puller) bring(ctx context.Context) error {
	storing, all := errgroup.WithContext(ctx) // an error of any ends all
	storing.SetLimit(storingMost)
	storing.Go(func() error {
		return p.each(all, p.segments, p.o.concurrency(), func(ctx context.Context, d ocispec.Descriptor, t *tracker) error {
			part, err := p.fetchSegment(ctx, d, t)
			if err != nil || part == nil {
				return err
			}
			storing.Go(func() error { return errors.Join(p.keep(all, d, part, t), part.Close()) })
			return nil
		})
	})
	return storing.Wait()
}

// hashesLater reports whether a segment is hashed after it was written, and not while it is written. It is false for segments that bypass the page cache, which would be read back from the disk.
func (p *Puller) hashesLater() bool { return p.cached && p.lazy != nil && !p.lazy.Source.Whole }

// fetchSegment brings a segment; nil: the store has it.
func (p *Puller) fetchSegment(ctx context.Context, d ocispec.Descriptor, t *tracker) (*store.Ingest, error) {
	leave, err := p.lazy.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return p.fetch(ctx, d, t, how{source: p.source(), cached: p.cached, later: p.hashesLater()})
}

// keep makes a segment a blob of the store.
func (p *Puller) keep(ctx context.Context, d ocispec.Descriptor, part *store.Ingest, t *tracker) error {
	if p.lazy != nil && p.cached {
		if err := p.lazy.calm(ctx, !p.hashesLater()); err != nil {
			return err
		}
	}
	if p.hashesLater() {
		if err := p.hash(ctx, d, part, t); err != nil {
			return err
		}
		if err := p.lazy.Source.Verified(d); err != nil {
			return err
		}
	}
	_, err := part.Commit(ctx, d.MediaType)
	return err
}

// hash verifies what has come, and fetches it once more where it is damaged.
func (p *Puller) hash(ctx context.Context, d ocispec.Descriptor, part *store.Ingest, t *tracker) error {
	select {
	case p.lazy.hashing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := part.Verify(ctx)
	<-p.lazy.hashing
	if errors.Is(err, store.ErrCorrupt) {
		attempts := damageAttempts - 1
		if p.repo.distrust(d.Digest) {
			attempts = damageAttempts
		}
		err = p.repo.complete(ctx, part, d, p.lazy.Source, t, attempts)
	}
	return err
}
