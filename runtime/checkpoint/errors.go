package checkpoint

import (
	"regexp"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// Leave writes the error of a checkpoint where the command finds it, in CRIU's work directory dir. Where no command asks, it does nothing.
func Leave(dir string, err error) error { return failure.Leave(dir, failure.Of(err)) }

// OtherVersion is the error of command and shim that have no version of the conversation in common. Nothing was done to the container.
func OtherVersion(why string) error {
	return failure.New(errdefs.ErrFailedPrecondition,
		"the container's shim is of another release than this cryo: take the checkpoint with the cryo command of that release, or end the container and start it anew under the installed one",
		"%s", why)
}

// otherVersion is how a shim says so. The builds before had no field for it.
var otherVersion = regexp.MustCompile(`it speaks version [0-9]+, the shim [0-9]+`)

// RefusedVersion returns what a shim has said that does not speak the version with which the command has greeted it; empty if err is another error.
func RefusedVersion(err error) string {
	if err == nil {
		return ""
	}
	return otherVersion.FindString(err.Error())
}

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
