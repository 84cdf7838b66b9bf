package format

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// reading begins the errors of this package.
const reading = "read index: "

// broken returns the error of a text that is no index. Its kind is DataLoss.
func broken(format string, args ...any) error {
	return failure.New(errdefs.ErrDataLoss, "the snapshot is damaged or was not written by cryo; repair it with cryo pull --repair, or take a new one", reading+"%s", fmt.Sprintf(format, args...))
}

// otherVersion returns the error that an index is of a version that this package does not read.
func otherVersion(v string) error {
	return failure.New(errdefs.ErrNotImplemented, "use the version of cryo that took the snapshot, or a newer one", "read index: version %q, not one of 1 to %d", v, IndexVersion)
}
