package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
)

// TestQuiet waits while parts are asked for, though not for ever, and no longer than there is a pull.
func TestQuiet(t *testing.T) {
	for name, prepare := range map[string]func(c *lazyPull, cancel func()){
		"nobody asks":       func(*lazyPull, func()) {},
		"somebody asked":    func(c *lazyPull, _ func()) { c.wanted.Store(time.Now().UnixNano()) },
		"somebody waits":    func(c *lazyPull, _ func()) { c.asking.Store(1) },
		"the pull is ended": func(c *lazyPull, cancel func()) { c.asking.Store(1); cancel() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c := &lazyPull{ctx: ctx}
		prepare(c, cancel)
		began := time.Now()
		c.quiet(began)
		if took := time.Since(began); c.asking.Load() == 0 && took < quietTime {
			t.Errorf("%s: it waits for %s", name, took)
		}
		cancel()
	}
}

// TestPullIsTheCause: why what makes the container run failed is the pull, where that has failed for another reason than being ended.
func TestPullIsTheCause(t *testing.T) {
	errPull, errRun := errors.New("the disk is full"), errors.New("a blob is missing")
	for _, test := range []struct{ pulled, want error }{
		{errPull, errPull},
		{nil, errRun},
		{fmt.Errorf("pull: %w", context.Canceled), errRun},
	} {
		c := &lazyPull{pulled: make(chan struct{})}
		c.ctx, c.cancel = context.WithCancelCause(t.Context())
		go func() {
			<-c.ctx.Done()
			c.err = test.pulled
			close(c.pulled)
		}()
		if err := c.cause(errRun); err != test.want {
			t.Errorf("the pull ends with %v: %v", test.pulled, err)
		}
	}
	var none *lazyPull
	if err := none.cause(errRun); err != errRun {
		t.Errorf("without a pull: %v", err)
	}
}

// TestBecause: why a container could not be started is what has kept its segments from coming, unless somebody has ended the pull.
func TestBecause(t *testing.T) {
	errPull, errStart := errors.New("the registry is gone"), errors.New("the driver says no")
	for _, test := range []struct{ pull, want error }{
		{errPull, errPull},
		{nil, errStart},
		{context.Canceled, errStart},
	} {
		c := &lazyPull{pulled: make(chan struct{}), err: test.pull}
		if err := c.because("x", errStart); err != errStart {
			t.Errorf("while it is pulled: %v", err)
		}
		close(c.pulled)
		if err := c.because("x", errStart); !errors.Is(err, test.want) || test.want == errPull && (!strings.Contains(err.Error(), "did not all come") || failure.Hint(err) == "") {
			t.Errorf("the pull ends with %v: %v", test.pull, err)
		}
	}
	var none *lazyPull
	if err := none.because("x", errStart); err != errStart {
		t.Errorf("without a pull: %v", err)
	}
}

// TestCommit: a container whose pull has failed does not run, and one that runs does not end with its pull.
func TestCommit(t *testing.T) {
	errPull := errors.New("the disk is full")
	c := new(lazyPull)
	if !c.away.fails(errPull) || c.commit() != errPull {
		t.Error("it runs, though the pull has failed")
	}
	c = new(lazyPull)
	if err := c.commit(); err != nil || c.away.fails(errPull) {
		t.Errorf("the pull of what runs fails, %v", err)
	}
	c = nil
	if err := c.commit(); err != nil {
		t.Errorf("without a pull: %v", err)
	}
}

// TestAway: a registry that is away is waited for while the container runs, as long as it may be away without bringing anything.
func TestAway(t *testing.T) {
	gone := fmt.Errorf("refused: %w", errdefs.ErrUnavailable)
	c := &lazyPull{counts: new(registry.Counts), patience: time.Hour}
	c.ctx, c.cancel = context.WithCancelCause(t.Context())
	if !c.wait(c.ctx, gone) {
		t.Error("it is not waited for before the container runs")
	}
	c.away.since = c.away.since.Add(-2 * beginPatience)
	if c.wait(c.ctx, gone) || c.ctx.Err() != nil {
		t.Errorf("it is waited for too long before the container runs: %v", c.ctx.Err())
	}
	c.away.since = time.Time{}
	if err := c.commit(); err != nil {
		t.Error(err)
	}
	c.runs.Store(true)
	for _, err := range []error{errdefs.ErrNotFound, errdefs.ErrPermissionDenied, errdefs.ErrFailedPrecondition, errdefs.ErrDataLoss, errors.New("empty")} {
		if !c.wait(c.ctx, err) {
			t.Errorf("it is not waited for after %v", err)
		}
	}
	if !c.wait(c.ctx, gone) || c.waiting() != gone.Error() {
		t.Errorf("it is not waited for: %q", c.waiting())
	}
	c.away.since = c.away.since.Add(-2 * time.Hour)
	c.away.moved = -1 // something has come since
	if !c.wait(c.ctx, gone) {
		t.Error("it is not waited for though it has brought something")
	}
	c.away.moved = -1
	if why := c.waiting(); why != "" {
		t.Errorf("something comes, and it waits for %q", why)
	}
	if !c.wait(c.ctx, gone) {
		t.Error("it is not waited for once more")
	}
	c.away.since = c.away.since.Add(-2 * time.Hour)
	if c.wait(c.ctx, gone) || !errdefs.IsUnavailable(context.Cause(c.ctx)) || failure.Hint(context.Cause(c.ctx)) == "" {
		t.Errorf("it is waited for too long: %v", context.Cause(c.ctx))
	}
	if c.wait(c.ctx, gone) {
		t.Error("it is waited for after the end")
	}
	c = &lazyPull{counts: new(registry.Counts), patience: time.Hour}
	c.ctx, c.cancel = context.WithCancelCause(t.Context())
	if err := c.commit(); err != nil || !c.wait(c.ctx, gone) {
		t.Errorf("it is not waited for while GPUs are loaded, %v", err)
	}
	c.away.since = c.away.since.Add(-2 * startPatience)
	if c.wait(c.ctx, gone) || context.Cause(c.ctx) != gone {
		t.Errorf("it is waited for too long while GPUs are loaded: %v", context.Cause(c.ctx))
	}
}
