package take

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// Error says what there is of a container after a checkpoint that did not come about, or of which not all came about. Its kind is [failure.ErrLost] where the
// container is lost, else its cause's; where that has none and there is no snapshot, Aborted.
type Error struct {
	Container string // as the caller calls it
	Running   bool   // it runs on
	Lost      bool   // it has ended, and should not have
	Snapshot  string // digest of the snapshot that was taken, which is safe here; empty: none
	Advice    string
	Err       error
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
	return e.Snapshot == "" && target == errdefs.ErrAborted && errors.Is(errdefs.Resolve(e.Err), errdefs.ErrUnknown)
}

// failed is the error of a checkpoint without a snapshot. The container is as it was, unless err says that it is lost.
func (t *taking) failed(ctx context.Context, err error) *Error {
	e := &Error{Container: t.Container, Running: !isLost(err), Lost: isLost(err), Err: err}
	if !strings.HasPrefix(err.Error(), "checkpoint ") {
		e.Err = fmt.Errorf("checkpoint %s: %w", t.Container, err)
	}
	switch {
	case e.Lost:
		e.Advice = "restore it from an earlier snapshot: cryo ls"
	case failure.Hint(err) != "", errors.Is(err, context.Canceled), ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		// it is found there, or not needed
	case errdefs.IsUnavailable(err):
		e.Advice = "see that containerd runs, and try again"
	default:
		e.Advice = "try again; CRIU's log is criu-dump.log in the container's bundle, below /run/containerd/io.containerd.runtime.v2.task"
	}
	return e
}

// kept is the error of what should have been done with a snapshot that is safe here; next says how it is done.
func (r *Result) kept(next string, err error) *Error {
	became := "was ended"
	if r.Running {
		became = "runs on"
	}
	return &Error{Container: r.asked.Container, Running: r.Running, Snapshot: r.Digest, Err: err,
		Advice: after(err, fmt.Sprintf("%s %s; the snapshot is safe as %s (%s); %s", r.asked.Container, became, r.asked.Ref, r.Digest, next))}
}

// after puts a hint after that of the cause.
func after(err error, hint string) string {
	if more := failure.Hint(err); more != "" {
		return more + "\n" + hint
	}
	return hint
}

func isLost(err error) bool { return errors.Is(err, failure.ErrLost) }
