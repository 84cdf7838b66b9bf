package checkpoint

import (
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// Failed returns the error of a checkpoint that has not come about, of a container that runs on as before. Its kind is that of err if that has one (cancelled, out of space), else Aborted.
func Failed(id string, err error) error {
	return failure.New(failure.KindOf(err, errdefs.ErrAborted), "", "checkpoint %s: %w; the container runs on", id, err)
}

// LossError is what [Devices] say when what was on devices cannot be brought back: the processes that had it there are of no
// use any more. Its kind is Internal.
type LossError struct {
	Err error
	// Others tells that the processes which are of no use have ended, and the others go on. Without it, the container is to be ended.
	Others bool
}

func (e *LossError) Error() string { return e.Err.Error() }

// Unwrap returns the cause and the kind.
func (e *LossError) Unwrap() []error { return []error{e.Err, errdefs.ErrInternal} }

// Lost returns the error of a container whose processes are gone although they should not be. op is what cost it them. Its kind is [failure.ErrLost].
func Lost(op, id string, err error) error {
	return failure.New(failure.ErrLost, "", "%s %s: the container is lost: %w", op, id, err)
}

// Busy returns the error of a container of which another checkpoint is under way. Its kind is [failure.ErrBusy].
func Busy(id string) error {
	return failure.New(failure.ErrBusy, "wait until it has ended", "checkpoint %s: another checkpoint of this container is under way", id)
}

// NotRunning returns the error that a container has no running process to dump. Its kind is FailedPrecondition.
func NotRunning(id, status string) error {
	return failure.New(errdefs.ErrFailedPrecondition, "start it first: ctr task start, or nerdctl start", "checkpoint %s: the container is %s, not running", id, status)
}
