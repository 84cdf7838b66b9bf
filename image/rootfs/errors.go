package rootfs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/errdefs"
)

// UnsupportedError says that a file cannot be put into an OCI layer. Its kind is FailedPrecondition.
type UnsupportedError struct {
	Path   string // inside the container
	Reason string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("write rootfs difference: %q %s", e.Path, e.Reason)
}

// Unwrap gives the kind of the error.
func (e *UnsupportedError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Hint says what to do next.
func (e *UnsupportedError) Hint() string {
	return "remove or rename the file in the container, or put it on a volume, and take the checkpoint again"
}

// LayerError says that a layer is not one that [Diff] writes. Its kind is DataLoss.
type LayerError struct {
	Path   string // of the entry; empty: the layer as a whole
	Reason string
}

func (e *LayerError) Error() string {
	if e.Path == "" {
		return "apply rootfs difference: " + e.Reason
	}
	return fmt.Sprintf("apply rootfs difference: %q %s", e.Path, e.Reason)
}

// Unwrap gives the kind of the error.
func (e *LayerError) Unwrap() error { return errdefs.ErrDataLoss }

// Hint says what to do next.
func (e *LayerError) Hint() string {
	return "the snapshot was not written by cryo or is damaged; repair it with cryo pull --repair, or take a new one"
}

// FullError says that a file system has no room, or no room for this user. Its kind is ResourceExhausted.
type FullError struct{ Err error }

func (e *FullError) Error() string { return e.Err.Error() }

// Unwrap gives the kind of the error and its cause, which is syscall.ENOSPC or syscall.EDQUOT.
func (e *FullError) Unwrap() []error { return []error{errdefs.ErrResourceExhausted, e.Err} }

// Hint says what to do next.
func (e *FullError) Hint() string {
	return "make room on the file system of the working directory or of the snapshotter"
}

// full gives the error of a full disk its type.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &FullError{Err: err}
	}
	return err
}
