package format

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// MalformedImage returns the error that an image of this name is not what CRIU writes. Its kind is DataLoss.
func MalformedImage(file, format string, args ...any) error {
	return failure.New(errdefs.ErrDataLoss,
		"the images are damaged or were written by a CRIU that this version does not know; take the checkpoint again and look at CRIU's log",
		"read CRIU image %s: %w", file, fmt.Errorf(format, args...))
}
