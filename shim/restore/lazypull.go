package restore

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
)

// lazyPull are the segments of a snapshot that are pulled while it is restored. nil: all are here.
type lazyPull struct {
	puller   *registry.Puller
	counts   *registry.Counts
	source   *store.PullSource
	ctx      context.Context // of the pull, and of all reading of what it brings; its cause says why it has failed
	cancel   context.CancelCauseFunc
	pulled   chan struct{} // closed when err is there
	err      error         // what has come of the pull
	all      chan struct{} // closed when the rest is pulled, and the snapshot may have its name
	inPlace  chan struct{} // closed when the cores are not needed to put memory in place
	whole    bool          // the container runs when all of it is here: nothing is held back for it
	patience time.Duration // how long a registry may be away while the container runs
	wanted   atomic.Int64  // when a part was asked for last, nanoseconds since 1970
	runs     atomic.Bool   // the container runs
	asking   atomic.Int64  // parts that are on their way
	away     away
}

// How long no reader may have asked for a part before the rest is pulled, and how long that waits at most: until the container answers, the
// line is for what it waits for.
const (
	quietTime = 40 * time.Millisecond
	quietMost = 500 * time.Millisecond
)

// probed says why a container does not run while its memory is pulled; empty: it does.
type probed struct {
	why string
	err error
}

// probe begins to find out whether the registry serves parts of the segments that are missing.
func probe(ctx context.Context, p *registry.Puller, o Options) <-chan probed {
	answer := make(chan probed, 1)
	go func() {
		why, err := tryParts(ctx, p, o)
		answer <- probed{why, err}
	}()
	return answer
}

// allHere is the reason where nothing is missing.
const allHere = "all memory is here"

func tryParts(ctx context.Context, p *registry.Puller, o Options) (string, error) {
	missing, err := p.Missing(ctx)
	switch {
	case err != nil:
		return "", err
	case len(missing) == 0:
		return allHere, nil
	case o.PullFirst:
		return "--pull-first", nil
	case o.Eager:
		return "--eager", nil
	}
	one := make([]byte, 1)
	if err = p.Ranges().Read(ctx, missing[0], 0, one, false); err != nil { // one bad answer may pass
		err = p.Ranges().Read(ctx, missing[0], 0, one, false)
	}
	if err != nil {
		return err.Error(), context.Cause(ctx)
	}
	return "", nil
}

// newLazyPull makes ready to serve segments that the puller has not finished.
func newLazyPull(ctx context.Context, s *store.Store, p *registry.Puller, whole bool, o Options) (*lazyPull, error) {
	c := &lazyPull{
		puller: p, counts: o.Registry.Counts, whole: whole, all: make(chan struct{}), inPlace: make(chan struct{}), pulled: make(chan struct{}),
		patience: time.Duration(o.Config.Restore.RegistryTimeout) * time.Second,
	}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	ranges := p.Ranges()
	var err error
	c.source, err = store.NewPullSource(c.ctx, s, func(ctx context.Context, d ocispec.Descriptor, off int64, part []byte, ahead bool) error {
		c.asking.Add(1)
		defer c.asking.Add(-1)
		defer func() { c.wanted.Store(time.Now().UnixNano()) }()
		return ranges.Read(ctx, d, off, part, ahead)
	})
	if err != nil {
		c.cancel(err)
		return nil, err
	}
	c.source.Whole, c.source.Away, c.source.Turn, c.source.Damaged = whole, c.wait, ranges.Turn, ranges.Damaged
	return c, nil
}

// headStart begins to pull while what makes the container run is at work: so many segments at once. 0: none before begin. Where the
// container runs when all is here, nothing else is waited for, and all are pulled at once.
func (c *lazyPull) headStart(parallel int) {
	if c.whole {
		parallel = -1
	}
	c.puller.Lazily(registry.Lazy{Source: c.source, Head: parallel, Running: c.all, Filled: c.inPlace})
	go func() {
		c.err = c.store()
		if errors.Is(c.err, store.ErrDiskFull) {
			c.err = errors.Join(c.err, c.puller.MakeRoom())
		}
		close(c.pulled)
	}()
}

// wrongTries is how often a segment is pulled, twice each time, that turns out to be another.
const wrongTries = 3

// store downloads the snapshot into the store. It waits for a registry that is away: for a few seconds before the container runs, and longer afterwards. It downloads damaged blobs again.
// If the store cannot be written, it ends the restore before the container runs; afterwards it downloads the container's memory without storing it.
func (c *lazyPull) store() error {
	placed := false // the container had all its memory at the last attempt
	for tries := 1; ; {
		err := c.puller.Finish(c.ctx)
		switch {
		case err == nil:
			return nil
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		}
		answer := errors.As(err, new(*registry.AnswerError))
		if answer && c.wait(c.ctx, err) {
			continue
		}
		if again := errdefs.IsDataLoss(err) && tries <= wrongTries; (answer || !again) && c.away.fails(err) {
			c.cancel(err)
			return err
		}
		if answer {
			return cmp.Or(context.Cause(c.ctx), err)
		}
		c.source.Unstored()
		if tries++; placed || errdefs.IsDataLoss(err) && tries > wrongTries {
			return err
		}
		if placed = c.room(); placed && !c.puller.HasRoom(c.ctx) {
			return err
		}
	}
}

// room waits until the store may take more, or until the container has all its memory, and reports whether it has.
func (c *lazyPull) room() (placed bool) {
	for {
		select {
		case <-c.inPlace:
			return true
		case <-c.ctx.Done():
			return false
		case <-time.After(awayPause):
		}
		if c.puller.HasRoom(c.ctx) {
			return false
		}
	}
}

// commit marks that the container is about to run, for which it may not ask any more where the pull has failed. From now on a registry that is away is waited for.
func (c *lazyPull) commit() error {
	if c == nil {
		return nil
	}
	return c.away.begin()
}

// begin begins to pull all that no process waits for, the container running.
func (c *lazyPull) begin() {
	if c == nil {
		return
	}
	c.runs.Store(true)
	go func() {
		if !c.whole {
			c.quiet(time.Now())
		}
		close(c.all)
	}()
}

// quiet waits until no reader asks for parts any more, or for as long as is good.
func (c *lazyPull) quiet(began time.Time) {
	tick := time.NewTicker(quietTime / 8)
	defer tick.Stop()
	for c.ctx.Err() == nil && time.Since(began) < quietMost {
		last := time.Unix(0, c.wanted.Load())
		if last.Before(began) {
			last = began
		}
		if c.asking.Load() == 0 && time.Since(last) >= quietTime {
			return
		}
		<-tick.C
	}
}

// placed says that memory is in place, and needs the cores no more.
func (c *lazyPull) placed() {
	if c != nil {
		close(c.inPlace)
	}
}

// followed returns the source, and a context that ends with ctx, or with the pull where that fails; nil: all is here.
func (c *lazyPull) followed(ctx context.Context) (*store.PullSource, context.Context) {
	if c == nil {
		return nil, ctx
	}
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	return c.source, ctx
}

// await waits until all is in the store.
func (c *lazyPull) await() error {
	if c == nil {
		return nil
	}
	<-c.pulled
	return c.err
}

// because returns the reason why a container could not be started where that is that segments do not come: something else has failed for it.
func (c *lazyPull) because(name string, err error) error {
	if c == nil {
		return err
	}
	select {
	case <-c.pulled:
	default:
		return err
	}
	if c.err == nil || errors.Is(c.err, context.Canceled) {
		return err
	}
	return cutOff(name, false, false, c.err)
}

// cause ends the pull before the container runs, and gives the reason where that was it: what it fetched goes where the disk is full.
func (c *lazyPull) cause(err error) error {
	if c == nil {
		return err
	}
	c.cancel(nil)
	if pulled := c.await(); pulled != nil && !errors.Is(pulled, context.Canceled) {
		return pulled
	}
	return err
}

// end ends the pull. reason is why it is not needed any more.
func (c *lazyPull) end(reason error) {
	if c != nil {
		c.cancel(reason)
	}
}

// close ends the pull, and lets go of what has come. It must not be read any more.
func (c *lazyPull) close() {
	if c == nil {
		return
	}
	c.cancel(nil)
	<-c.pulled // it writes into the store
	c.source.Close()
}
