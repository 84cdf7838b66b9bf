package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image/arrival"
)

// TestQuiet waits while parts are asked for, though not for ever, and no longer than there is a pull.
func TestQuiet(t *testing.T) {
	for name, prepare := range map[string]func(c *arriving, cancel func()){
		"nobody asks":       func(*arriving, func()) {},
		"somebody asked":    func(c *arriving, _ func()) { c.wanted.Store(time.Now().UnixNano()) },
		"somebody waits":    func(c *arriving, _ func()) { c.asking.Store(1) },
		"the pull is ended": func(c *arriving, cancel func()) { c.asking.Store(1); cancel() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c := &arriving{ctx: ctx}
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
		ctx, cancel := context.WithCancel(t.Context())
		c := &arriving{cancel: cancel, pulled: make(chan error, 1)}
		go func() {
			<-ctx.Done()
			c.pulled <- test.pulled
			close(c.pulled)
		}()
		if err := c.cause(errRun); err != test.want {
			t.Errorf("the pull ends with %v: %v", test.pulled, err)
		}
	}
	var none *arriving
	if err := none.cause(errRun); err != errRun {
		t.Errorf("without a pull: %v", err)
	}
}

// TestBecause: why a container could not be started is what has kept its segments from coming, but for the end of who needs them, which follows from it.
func TestBecause(t *testing.T) {
	errPull, errStart := errors.New("the registry is gone"), errors.New("the driver says no")
	for _, test := range []struct{ pull, want error }{
		{errPull, errPull},
		{nil, errStart},
		{&arrival.LeftError{Does: "reads"}, errStart},
	} {
		server, err := arrival.Serve(t.Context(), t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		if test.pull != nil {
			server.Fail(test.pull)
		}
		c := &arriving{server: server}
		if err := c.because("x", errStart); !errors.Is(err, test.want) || test.want == errPull && (!strings.Contains(err.Error(), "did not all come") || Hint(err) == "") {
			t.Errorf("the pull ends with %v: %v", test.pull, err)
		}
	}
	var none *arriving
	if err := none.because("x", errStart); err != errStart {
		t.Errorf("without a pull: %v", err)
	}
}
