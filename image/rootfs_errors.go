package image

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// unsupportedError returns the error that a file, whose path is that in the container, cannot be put into an OCI layer.
func unsupportedError(path, reason string) error {
	return failure.New(errdefs.ErrFailedPrecondition, "remove or rename the file in the container, or put it on a volume, and take the checkpoint again",
		"write rootfs difference: %q %s", path, reason)
}

// layerError returns the error that a layer is not one that [DiffRootFS] writes. path is that of the entry; empty: the layer as a whole.
func layerError(path, reason string) error {
	if path != "" {
		reason = fmt.Sprintf("%q %s", path, reason)
	}
	return failure.New(errdefs.ErrDataLoss, "the snapshot was not written by cryo or is damaged; repair it with cryo pull --repair, or take a new one",
		"apply rootfs difference: %s", reason)
}

// fullDisk is [full] where what is written is a working directory or a container's root file system, and not the local store.
func fullDisk(err error) error {
	return noRoom(err, "make room on the file system of the working directory or of the snapshotter")
}
