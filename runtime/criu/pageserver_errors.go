package criu

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// misunderstood returns the error of a CRIU that has sent what this package does not know. Its kind is NotImplemented.
func misunderstood(format string, args ...any) error {
	return failure.New(errdefs.ErrNotImplemented, "this version of CRIU is not known; use one of those that cryo doctor accepts", "receive memory from CRIU: %s", fmt.Sprintf(format, args...))
}
