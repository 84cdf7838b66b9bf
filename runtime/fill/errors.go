package fill

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// misunderstood returns the error that what CRIU sends is not understood.
func misunderstood(format string, args ...any) error {
	return failure.New(errdefs.ErrUnknown, "this version of CRIU is not known; use one of those that cryo doctor accepts, or cryo restore --eager",
		"receive processes from CRIU: %s", fmt.Sprintf(format, args...))
}
