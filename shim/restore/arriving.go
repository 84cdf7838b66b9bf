package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
)

// arriving are the segments of a snapshot that are pulled while it is restored. nil: all are here.
type arriving struct {
	puller *registry.Puller
	source *arrival.Source
	server *arrival.Server
	parts  *registry.Wanted // nil: the container waits for all segments
	dir    string           // of the server's socket
	cancel context.CancelFunc
	ctx    context.Context // of the pull
	pulled chan error      // nil: it has not begun
	all    chan struct{}   // closed when the rest is pulled, and the snapshot may have its name
	whole  bool            // the container runs when all of it is here: nothing is held back for it
	wanted atomic.Int64    // when a part was asked for last, nanoseconds since 1970
	asking atomic.Int64    // parts that are on their way
}

// How long nobody may have asked for a part before the rest is pulled, and how long that waits at most: until the container answers, the
// line is for what it waits for.
const (
	quietTime = 40 * time.Millisecond
	quietMost = 500 * time.Millisecond
)

// probe begins to find out whether the registry serves parts of the segments that are missing, and gives what waits for the answer: why
// a container does not run while its memory is pulled; empty: it does. A snapshot that is here needs none.
func probe(ctx context.Context, p *registry.Puller, o Options) (whyPullFirst func(eager string) (string, error)) {
	type answer struct {
		why string
		err error
	}
	answers := make(chan answer, 1)
	if p != nil {
		go func() {
			why, err := tryParts(ctx, p, o)
			answers <- answer{why, err}
		}()
	}
	return func(eager string) (string, error) {
		a := <-answers
		switch {
		case a.err != nil || a.why == allHere || o.PullFirst:
			return a.why, a.err
		case eager != "":
			return eager, nil
		}
		return a.why, nil
	}
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
	if err := p.Ranges().Read(ctx, missing[0], 0, one, unchecked); err != nil {
		return err.Error(), context.Cause(ctx)
	}
	return "", nil
}

// unchecked is for bytes that their reader verifies.
func unchecked([]byte) error { return nil }

// newArriving makes ready to serve segments that the puller has not finished.
func newArriving(ctx context.Context, s *store.Store, p *registry.Puller, work string, whole bool) (*arriving, error) {
	c := &arriving{puller: p, whole: whole, dir: filepath.Join(work, "arrival")}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a working directory: %w", err)
	}
	var err error
	ranges := p.Ranges()
	fetch := func(ctx context.Context, d ocispec.Descriptor, off int64, part []byte, why arrival.Why) error {
		c.asking.Add(1)
		defer c.asking.Add(-1)
		defer func() { c.wanted.Store(time.Now().UnixNano()) }()
		switch {
		case whole:
			return ranges.Read(ctx, d, off, part, unchecked)
		case why == arrival.Damaged:
			return c.parts.ReadAgain(ctx, d, off, part)
		}
		return c.parts.Read(ctx, d, off, part, why == arrival.Ahead)
	}
	if !whole {
		if c.parts, err = p.Wanted(); err != nil {
			return nil, err
		}
	}
	if c.server, err = arrival.Serve(ctx, c.dir, fetch); err != nil {
		return nil, err
	}
	c.source = arrival.NewSource(ctx, s, fetch)
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c, nil
}

// where is the directory in which others find the segments; empty: in the store.
func (c *arriving) where() string {
	if c == nil {
		return ""
	}
	return c.dir
}

// headStart begins to pull while what makes the container run is at work: so many segments at once. 0: none before begin. Where the
// container runs when all is here, nothing else is waited for, and all are pulled at once.
func (c *arriving) headStart(parallel int) {
	c.all, c.pulled = make(chan struct{}), make(chan error, 1)
	pace := registry.Pace{All: c.all, Slots: make(chan struct{}, parallel)}
	if c.whole {
		pace.Slots = nil
		c.puller.Verified(c.server.Verified)
	} else {
		c.puller.Defer(c.server.Alone)
	}
	c.puller.Pace(pace)
	go func() {
		err := c.puller.Finish(c.ctx)
		if err != nil {
			c.server.Fail(err)
		}
		c.pulled <- err
		close(c.pulled)
	}()
}

// begin begins to pull all that nobody waits for, the container running.
func (c *arriving) begin() {
	if c == nil {
		return
	}
	go func() {
		if !c.whole {
			c.quiet(time.Now())
		}
		close(c.all)
	}()
}

// quiet waits until nobody asks for parts any more, or for as long as is good.
func (c *arriving) quiet(began time.Time) {
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

// await waits until all is in the store, and nobody needs this process any more.
func (c *arriving) await() error {
	select {
	case err := <-c.pulled:
		if err != nil {
			return cmp.Or(c.server.Err(), err) // the first
		}
		return c.server.Complete()
	case <-c.server.Failed():
		return c.server.Err()
	}
}

// because gives the reason why a container could not be started where that is that segments do not come: something else has failed for it. That who needs
// them has ended is no reason: the shim sees to that process, and knows more.
func (c *arriving) because(name string, err error) error {
	if c == nil {
		return err
	}
	pull := c.server.Err()
	if pull == nil || errors.As(pull, new(*arrival.LeftError)) {
		return err
	}
	return &CutOffError{Name: name, Err: pull}
}

// cause ends the pull before the container runs, and gives the reason where that was it: what it fetched goes where the disk is full.
func (c *arriving) cause(err error) error {
	if c == nil {
		return err
	}
	c.cancel()
	if pulled := <-c.pulled; pulled != nil && !errors.Is(pulled, context.Canceled) {
		return pulled
	}
	return err
}

// close ends the pull.
func (c *arriving) close() {
	if c == nil {
		return
	}
	c.cancel()
	if c.pulled != nil {
		for range c.pulled { // it writes into the store
		}
	}
	c.server.Close()
	c.parts.Close()
}
