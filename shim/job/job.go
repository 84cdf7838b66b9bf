// Package job has what a checkpoint (package take) and a restore (package bring) tell who asked for them: how far they are, what they have moved, and what there is
// of the container where they fail.
package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/spec/failure"
)

// Hooks are told how far it is. Each may be nil.
type Hooks struct {
	Progress image.Progress
	// Ended is told that an activity of Progress has ended whose end cannot be seen from its numbers.
	Ended func(activity string)
	// WaitsFor is given who tells what an activity of Progress waits for while it does not move.
	WaitsFor func(activity string, why func() string)
	// Warn is told what a user should know, and Say what is going on.
	Warn, Say func(format string, args ...any)
	// Stage is told what has just been done.
	Stage func(ctx context.Context, what string)
}

// OrNobody gives them with who hears nothing where one is nil, but for Progress.
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
	if h.Stage == nil {
		h.Stage = func(context.Context, string) {}
	}
	return h
}

// Error says what there is of a container after a checkpoint or restore that did not come about, or of which not all came about. Its kind is [failure.ErrLost] where
// the container is lost, else its cause's; where that has none and nothing came about, Aborted.
type Error struct {
	Container string // as the caller calls it
	Running   bool   // it runs
	Lost      bool   // it has ended, and should not have
	Restored  bool   // it was restored
	Snapshot  string // digest of the snapshot that was taken, which is safe here; empty: none
	Advice    string
	Err       error
}

// Failed is the error of what did not come about, and left the container as it was: err, which says what was being done (op) of which container. advice is for where
// the cause has none.
func Failed(ctx context.Context, op, container, advice string, err error) *Error {
	e := &Error{Container: container, Err: err}
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

func (e *Error) Error() string { return e.Err.Error() }

// Hint says what there is, and how to go on.
func (e *Error) Hint() string { return e.Advice }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is gives the kind.
func (e *Error) Is(target error) bool {
	if e.Lost {
		return target == failure.ErrLost || target == errdefs.ErrInternal
	}
	return e.Snapshot == "" && !e.Restored && target == errdefs.ErrAborted && errors.Is(errdefs.Resolve(e.Err), errdefs.ErrUnknown)
}

// Transfer is what moving a snapshot came to.
type Transfer struct {
	Moved   int64   `json:"bytesMoved"` // over the line, repetitions included
	There   int64   `json:"bytesThere"` // that were there already
	Retries int64   `json:"retries"`    // requests that were repeated
	Seconds float64 `json:"seconds"`    // with a checkpoint: after it was complete here
}

// Transferred is what c has counted since start.
func Transferred(c *registry.Counts, start time.Time) *Transfer {
	return &Transfer{Moved: c.Moved(), There: c.There(), Retries: c.Repeated(), Seconds: time.Since(start).Seconds()}
}
