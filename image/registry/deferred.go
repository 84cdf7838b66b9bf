package registry

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
)

// Limits of segments whose digest is found out later.
const (
	deferredMost = 256             // segments that wait to be hashed; each has its file open
	restTime     = 2 * time.Second // the longest that a complete segment waits to be hashed or stored
	verifiers    = 16              // goroutines that hash at once; each has a buffer
)

// deferred are segments that have come, or are coming, and are hashed when who reads them has all, so that it has the cores until then. Nothing waits for longer than
// restTime: another process may want the segment, and have one that this process waits for.
type deferred struct {
	filled func(ctx context.Context) // see Puller.Defer
	time   time.Duration
	places chan struct{} // of those that wait
	ready  chan struct{} // closed when nobody needs the cores any more
	opened sync.Once     // closes ready: a pull that has failed may be begun again
	turns  chan struct{} // of verifying
}

// Defer has the digests of segments that go through the page cache be found out when all have come and filled has returned, as far as that is not long after they have
// come: who reads them verifies what it reads. Not even then does a segment get its name without.
func (p *Puller) Defer(filled func(ctx context.Context)) {
	p.deferred = &deferred{
		filled: filled, time: restTime, places: make(chan struct{}, deferredMost),
		ready: make(chan struct{}), turns: make(chan struct{}, min(runtime.GOMAXPROCS(0), verifiers)),
	}
}

// take says whether one more segment may be hashed later. release gives back its place.
func (l *deferred) take() (release func(), ok bool) {
	if l == nil {
		return nil, false
	}
	select {
	case l.places <- struct{}{}:
		return func() { <-l.places }, true
	default:
		return nil, false
	}
}

// open lets all be hashed when filled says so.
func (l *deferred) open(ctx context.Context) {
	if l != nil {
		l.filled(ctx)
		l.opened.Do(func() { close(l.ready) })
	}
}

// wait waits until a segment that has just come may be hashed, which it is before done is called.
func (l *deferred) wait(ctx context.Context) (done func(), err error) {
	late := time.NewTimer(l.time)
	defer late.Stop()
	select {
	case <-l.ready:
	case <-late.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case l.turns <- struct{}{}:
		return func() { <-l.turns }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// settle verifies what later has brought, tells of it, and fetches it once more where it is damaged.
func (p *Puller) settle(ctx context.Context, part *store.Partial, d ocispec.Descriptor, t *tracker) error {
	done, err := p.deferred.wait(ctx)
	if err != nil {
		return err
	}
	err = part.Verify(ctx)
	done()
	if errors.As(err, new(*CorruptError)) {
		err = p.repo.complete(ctx, part, d, nil, t, damageAttempts-1)
	}
	if err != nil {
		return err
	}
	return p.tell(d, part)
}
