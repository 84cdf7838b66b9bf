package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/shim/worker"
)

// Hooks are functions that a checkpoint or restore calls while it is at work. Each may be nil.
type Hooks struct {
	Progress image.Progress
	// Ended is called when an activity of Progress has ended whose total was not known.
	Ended func(activity string)
	// WaitsFor registers why, which says what an activity of Progress waits for. It is called while the activity's numbers stand still.
	WaitsFor func(activity string, why func() string)
	// Warn prints what a user should know, Say what is being done.
	Warn, Say func(format string, args ...any)
	// Step is called at each step of a member of a group, and returns when the member may go on. An error undoes the work. If it is nil, the container is no member.
	Step func(ctx context.Context, at worker.Reached) (worker.Permission, error)
}

// OrNobody returns the hooks, with an empty function for each that is nil. Progress and Step may stay nil.
func (h Hooks) OrNobody() Hooks {
	if h.Ended == nil {
		h.Ended = func(string) {}
	}
	if h.WaitsFor == nil {
		h.WaitsFor = func(string, func() string) {}
	}
	if h.Warn == nil {
		h.Warn = func(string, ...any) {}
	}
	if h.Say == nil {
		h.Say = func(string, ...any) {}
	}
	return h
}

// Pass passes a step. A container that is no member of a group passes all.
func (h Hooks) Pass(ctx context.Context, at worker.Reached) (worker.Permission, error) {
	if h.Step == nil {
		return worker.Permission{}, nil
	}
	return h.Step(ctx, at)
}

// JobError is the error of a checkpoint or restore that failed as a whole or in part. It says in which state the container is. Its kind is [failure.ErrLost] if the
// container is lost, else that of its cause. If the cause has none, and there is neither a snapshot nor a restored container, its kind is Aborted.
type JobError struct {
	Container string // as the caller calls it
	Running   bool   // it runs
	Lost      bool   // it has ended, and should not have
	Restored  bool   // it was restored
	Snapshot  string // digest of the snapshot that was taken, which is safe here; empty: none
	Advice    string
	Err       error
}

// JobFailed wraps err, the reason why a checkpoint or restore failed. op names the operation. advice becomes the hint if err has none.
func JobFailed(ctx context.Context, op, container, advice string, err error) *JobError {
	e := &JobError{Container: container, Err: err}
	if !strings.HasPrefix(err.Error(), op+" ") {
		e.Err = fmt.Errorf("%s %s: %w", op, container, err)
	}
	switch {
	case failure.Hint(err) != "", errors.Is(err, context.Canceled), ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		// it is found there, or not needed
	case errdefs.IsUnavailable(err):
		e.Advice = "see that containerd runs, and try again"
	default:
		e.Advice = advice
	}
	return e
}

func (e *JobError) Error() string { return e.Err.Error() }

// Hint returns what to do next.
func (e *JobError) Hint() string { return e.Advice }

// Unwrap returns the cause.
func (e *JobError) Unwrap() error { return e.Err }

// Is reports whether target is the kind.
func (e *JobError) Is(target error) bool {
	if e.Lost {
		return target == failure.ErrLost || target == errdefs.ErrInternal
	}
	return e.Snapshot == "" && !e.Restored && target == errdefs.ErrAborted && errors.Is(errdefs.Resolve(e.Err), errdefs.ErrUnknown)
}

// Transfer says how much of a snapshot was moved, and in which time.
type Transfer struct {
	Moved   int64   `json:"bytesMoved"` // over the line, repetitions included
	There   int64   `json:"bytesThere"` // that were there already
	Retries int64   `json:"retries"`    // requests that were repeated
	Seconds float64 `json:"seconds"`    // with a checkpoint: after it was complete here
}

// Transferred returns what c has counted, and the time since start.
func Transferred(c *registry.Counts, start time.Time) *Transfer {
	return &Transfer{Moved: c.Moved(), There: c.There(), Retries: c.Repeated(), Seconds: time.Since(start).Seconds()}
}
