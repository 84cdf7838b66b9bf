package device

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// GoneError says that the other side hung up before all was moved. Its kind is Aborted.
type GoneError struct {
	Err error // of the socket; nil: an orderly end
}

func (e *GoneError) Error() string {
	if e.Err == nil {
		return "move device memory: the other process has hung up"
	}
	return fmt.Sprintf("move device memory: the other process is gone: %v", e.Err)
}

// Hint returns where to look.
func (e *GoneError) Hint() string {
	return "the other process says why: see the output of cryo, and the log of containerd for the shim's"
}

// Unwrap returns the cause and the kind.
func (e *GoneError) Unwrap() []error {
	if e.Err == nil {
		return []error{errdefs.ErrAborted}
	}
	return []error{e.Err, errdefs.ErrAborted}
}

// stallError returns the error that the other side has done nothing for so long, though it was its turn.
func stallError(after time.Duration) error {
	return failure.New(errdefs.ErrUnavailable, "see whether it is stopped, or waits for a disk or the network; try again when the host has less to do",
		"move device memory: the other process has done nothing for %s", after)
}

// broken is the error of a message that no sound peer sends. Its kind is InvalidArgument.
func broken(format string, args ...any) error {
	return fmt.Errorf("move device memory: %s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
