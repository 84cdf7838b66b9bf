package restore

import (
	"context"
	"fmt"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// asked is a helper that was asked for the driver's facts. To initialise the driver takes it 0.2 s.
type asked struct {
	cancel context.CancelFunc
	done   chan struct{}

	facts  driver.Facts // these are there when done is closed
	driver *OpenDriver  // nil: there is an error
	err    error
}

// ask asks one. The driver stays open until the caller closes that.
func ask(ctx context.Context) *asked {
	ctx, cancel := context.WithCancel(ctx)
	q := &asked{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(q.done)
		facts, k, err := driver.Ask(ctx, "")
		switch {
		case err == nil:
			q.facts, q.driver = facts, keepOpen(k)
		case ctx.Err() != nil:
			q.err = &unaskedError{err: context.Cause(ctx)}
		default:
			q.err = err
		}
	}()
	return q
}

// wait waits for the answer.
func (q *asked) wait() (driver.Facts, *OpenDriver, error) {
	<-q.done
	q.cancel()
	return q.facts, q.driver, q.err
}

// unaskedError says that nobody wanted to know any more.
type unaskedError struct{ err error }

func (e *unaskedError) Error() string { return fmt.Sprintf("look at the GPUs: %v", e.err) }

func (e *unaskedError) Unwrap() error { return e.err }
