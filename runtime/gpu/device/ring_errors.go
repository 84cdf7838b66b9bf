package device

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// ErrHungUp is the kind of the error that the other side hung up before all was moved. It wraps Aborted.
var ErrHungUp = fmt.Errorf("the other process has hung up: %w", errdefs.ErrAborted)

// hungUp returns the error that the other side has hung up. err is the socket's; nil: an orderly end.
func hungUp(err error) error {
	const hint = "the other process says why: see the output of cryo, and the log of containerd for the shim's"
	if err == nil {
		return failure.New(ErrHungUp, hint, "move device memory: the other process has hung up")
	}
	return failure.New(ErrHungUp, hint, "move device memory: the other process is gone: %w", err)
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
