package checkpoint

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// Leave writes the error of a checkpoint where the command finds it, in CRIU's work directory dir. Where no command asks, it does nothing.
func Leave(dir string, err error) error { return failure.Leave(dir, told(err)) }

// told is what the command hears of an error. A [LostError] is of the kind [failure.ErrLost], a [BusyError] of the kind [failure.ErrBusy].
func told(err error) *failure.Error {
	switch {
	case errors.As(err, new(*LostError)):
		return failure.Of(err, failure.ErrLost)
	case errors.As(err, new(*BusyError)):
		return failure.Of(err, failure.ErrBusy)
	}
	return failure.Of(err)
}

// FailedError says that there is no checkpoint and that the container runs on as before. Its kind is that of the
// cause where that has one (cancelled, out of space), else Aborted.
type FailedError struct {
	ID  string
	Err error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("checkpoint %s: %v; the container runs on", e.ID, e.Err)
}

// Unwrap gives the cause and the kind.
func (e *FailedError) Unwrap() []error { return []error{e.Err, errdefs.ErrAborted} }

// LossError is what [Devices] say when what was on devices cannot be brought back: the processes that had it there are of no
// use any more. Its kind is Internal.
type LossError struct{ Err error }

func (e *LossError) Error() string { return e.Err.Error() }

// Unwrap gives the cause and the kind.
func (e *LossError) Unwrap() []error { return []error{e.Err, errdefs.ErrInternal} }

// LostError says that the container's processes are gone although they should not be. Its kind is Internal.
type LostError struct {
	Op  string // what cost it them; empty: checkpoint
	ID  string
	Err error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%s %s: the container is lost: %v", cmp.Or(e.Op, "checkpoint"), e.ID, e.Err)
}

// Unwrap gives the kind and the cause.
func (e *LostError) Unwrap() []error { return []error{errdefs.ErrInternal, e.Err} }

// BusyError says that another checkpoint or restore of the container is under way. Its kind is FailedPrecondition.
type BusyError struct{ ID string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("checkpoint %s: another checkpoint of this container is under way", e.ID)
}

// Hint says what to do.
func (e *BusyError) Hint() string { return "wait until it has ended" }

// Unwrap gives the kind.
func (e *BusyError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// NotRunning says that a container has no running process to dump. Its kind is FailedPrecondition.
func NotRunning(id, status string) error {
	return failure.New(errdefs.ErrFailedPrecondition, "start it first: ctr task start, or nerdctl start", "checkpoint %s: the container is %s, not running", id, status)
}
