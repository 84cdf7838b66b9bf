package pages

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// FormatError says that an image is not what CRIU writes. Its kind is DataLoss.
type FormatError struct {
	File   string // name of the image
	Reason string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("read CRIU image %s: %s", e.File, e.Reason)
}

// Unwrap gives the kind of the error.
func (e *FormatError) Unwrap() error { return errdefs.ErrDataLoss }

// Hint says what to do next.
func (e *FormatError) Hint() string {
	return "the images are damaged or were written by a CRIU that this version does not know; take the checkpoint again and look at CRIU's log"
}

// UnsupportedError says that images are sound but of a sort that cannot be packed. Its kind is NotImplemented.
type UnsupportedError struct {
	File   string // name of the image
	Reason string
	Advice string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("read CRIU image %s: %s", e.File, e.Reason)
}

// Unwrap gives the kind of the error.
func (e *UnsupportedError) Unwrap() error { return errdefs.ErrNotImplemented }

// Hint says what to do next.
func (e *UnsupportedError) Hint() string { return e.Advice }

func malformed(file, format string, args ...any) error {
	return &FormatError{File: file, Reason: fmt.Sprintf(format, args...)}
}
