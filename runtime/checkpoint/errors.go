package checkpoint

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// FailedError says that there is no checkpoint and that the container runs on as before. Its kind is that of the
// cause where that tells more (cancelled, out of space), else Aborted.
type FailedError struct {
	ID  string
	Err error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("checkpoint %s: %v; the container runs on", e.ID, e.Err)
}

// Unwrap gives the cause.
func (e *FailedError) Unwrap() error { return e.Err }

// Is makes the error one of kind Aborted unless its cause is of a kind.
func (e *FailedError) Is(target error) bool {
	return target == errdefs.ErrAborted && errors.Is(errdefs.Resolve(e.Err), errdefs.ErrUnknown)
}

// LostError says that the container's processes are gone although they should not be. Its kind is Internal.
type LostError struct {
	ID  string
	Err error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("checkpoint %s: the container is lost: %v", e.ID, e.Err)
}

// Is makes the error one of kind Internal.
func (e *LostError) Is(target error) bool { return target == errdefs.ErrInternal }

// BusyError says that another checkpoint or restore of the container is under way. Its kind is FailedPrecondition.
type BusyError struct{ ID string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("checkpoint %s: another checkpoint of this container is under way", e.ID)
}

// Hint says what to do.
func (e *BusyError) Hint() string { return "wait until it has ended" }

// Is makes the error one of kind FailedPrecondition.
func (e *BusyError) Is(target error) bool { return target == errdefs.ErrFailedPrecondition }

// NotRunningError says that the container has no running process to dump. Its kind is FailedPrecondition.
type NotRunningError struct{ ID, Status string }

func (e *NotRunningError) Error() string {
	return fmt.Sprintf("checkpoint %s: the container is %s, not running", e.ID, e.Status)
}

// Hint says what to do.
func (e *NotRunningError) Hint() string { return "start it first: ctr task start, or nerdctl start" }

// Is makes the error one of kind FailedPrecondition.
func (e *NotRunningError) Is(target error) bool { return target == errdefs.ErrFailedPrecondition }
