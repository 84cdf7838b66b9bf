package registry

import (
	"cmp"
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/lazypull"
	"github.com/cryo-project/cryo/image/store"
)

// Lazy is how segments are pulled for a container that is restored meanwhile, which needs the cores, the disk and the line for something else.
type Lazy struct {
	// Source is told of what comes, and has what came ahead of the pull. The registry must serve parts of blobs.
	Source *lazypull.Source
	// Head is how many segments are pulled at once until the container runs; negative: as many as ever.
	Head int
	// Running is closed when the container runs. The snapshot gets no name before.
	Running <-chan struct{}
	// Filled is closed when its memory is in place. Until then segments that go through the page cache are not hashed: who reads them verifies what it reads. Those
	// of a source that has them as wholes are.
	Filled <-chan struct{}

	head   chan struct{} // has a place for each segment that is pulled before the container runs
	rest   time.Duration // see restTime
	places int           // see placesMost
}

const (
	// restTime is the longest that a segment that has come waits to be hashed and stored: another process may want it, and have one that this process waits for.
	restTime = 2 * time.Second
	// placesMost is how many segments may have come that the store does not have yet. Each has its file open.
	placesMost = 256
	// verifiersMost is how many goroutines hash at once. Each has a buffer.
	verifiersMost = 16
)

// Lazily has Finish pull for a container that is restored meanwhile.
func (p *Puller) Lazily(l Lazy) {
	if l.Head >= 0 {
		l.head = make(chan struct{}, l.Head)
	}
	l.rest = cmp.Or(l.rest, restTime)
	l.places = cmp.Or(l.places, placesMost)
	p.lazy = &l
}

// source may be nil.
func (p *Puller) source() *lazypull.Source {
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

// calm waits, for a moment at most, until something is closed.
func (l *Lazy) calm(ctx context.Context, until <-chan struct{}) error {
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

// coming is a segment that has come.
type coming struct {
	d      ocispec.Descriptor
	t      *tracker
	part   *store.Partial
	hashed bool // and verified
}

// bringing are segments on their way into the store.
type bringing struct {
	*Puller
	places  chan struct{} // of those that have come and wait; each has its file open
	hashing chan struct{} // of those that are hashed; each has a buffer
}

// bring pulls the segments. That the store has one is not waited for before another is begun, as long as there is a place for it.
func (p *Puller) bring(ctx context.Context) error {
	places := placesMost
	if p.lazy != nil {
		places = p.lazy.places
	}
	b := bringing{p, make(chan struct{}, places), make(chan struct{}, min(runtime.GOMAXPROCS(0), verifiersMost))}
	storing, all := errgroup.WithContext(ctx) // an error of any ends all
	storing.Go(func() error {
		return p.each(all, p.segments, p.o.segments(), func(ctx context.Context, d ocispec.Descriptor, t *tracker) error {
			select {
			case b.places <- struct{}{}:
			default:
				c, err := b.fetch(ctx, d, t, false)
				if err != nil || c == nil {
					return err
				}
				return b.keep(all, c, false)
			}
			c, err := b.fetch(ctx, d, t, true)
			if err != nil || c == nil {
				<-b.places
				return err
			}
			storing.Go(func() error {
				defer func() { <-b.places }()
				return b.keep(all, c, true)
			})
			return nil
		})
	})
	return storing.Wait()
}

// fetch brings a segment; nil: the store has it. It is hashed as it comes, unless it may be later.
func (b *bringing) fetch(ctx context.Context, d ocispec.Descriptor, t *tracker, later bool) (*coming, error) {
	leave, err := b.lazy.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	part, err := resume(ctx, b.dst, d, t)
	if err != nil {
		return nil, err
	}
	s := b.source()
	if part == nil {
		return nil, s.Stored(ctx, d)
	}
	c := &coming{d: d, t: t, part: part}
	if b.cached {
		part.ThroughCache()
	}
	if s != nil {
		var f *os.File
		if f, err = part.Content(); err == nil {
			s.Begin(d, f, part.Offset())
		}
	}
	switch {
	case err != nil:
	case later && b.cached && s != nil && !s.Whole: // else it would be read back from the disk
		part.Defer()
		err = b.repo.fill(ctx, part, d, s, t)
	default:
		c.hashed = true
		err = b.repo.complete(ctx, part, d, s, t, damageAttempts)
	}
	if err != nil {
		_ = part.Close() // err says more
		return nil, err
	}
	return c, nil
}

// keep makes a segment a blob of the store when the container is in nobody's way, or at once.
func (b *bringing) keep(ctx context.Context, c *coming, wait bool) (err error) {
	defer func() { err = errors.Join(err, c.part.Close()) }()
	s := b.source()
	if c.hashed {
		if err := s.Verified(c.d); err != nil {
			return err
		}
	}
	if wait && b.lazy != nil && b.cached {
		until := b.lazy.Running
		if !c.hashed {
			until = b.lazy.Filled
		}
		if err := b.lazy.calm(ctx, until); err != nil {
			return err
		}
	}
	if !c.hashed {
		if err := b.hash(ctx, c); err != nil {
			return err
		}
		if err := s.Verified(c.d); err != nil {
			return err
		}
	}
	return c.part.Place(ctx)
}

// hash verifies what has come, and fetches it once more where it is damaged.
func (b *bringing) hash(ctx context.Context, c *coming) error {
	select {
	case b.hashing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := c.part.Verify(ctx)
	<-b.hashing
	if errors.As(err, new(*CorruptError)) {
		err = b.repo.complete(ctx, c.part, c.d, b.source(), c.t, damageAttempts-1)
	}
	return err
}
