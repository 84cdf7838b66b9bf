// Package rootfs takes and puts back the difference between a container's rootfs and its base image.
package rootfs

import (
	"context"
	"io"

	"github.com/containerd/errdefs"
)

// Captured counts what [Capture] copied.
type Captured struct {
	Files int64 // entries of any kind
	Bytes int64 // of file contents, holes left out
}

// Capture copies an overlayfs upper directory to dst, which must not exist or be empty, with everything that makes it an
// upper directory: whiteouts, opaque marks, hard links, ownership, times, extended attributes. Sockets are left out.
func Capture(ctx context.Context, dst, upper string) (Captured, error) {
	return Captured{}, errdefs.ErrNotImplemented
}

// Diff writes what upper changes in lower as an OCI layer, uncompressed. upper is an overlayfs upper directory or a
// [Capture] of one, lower is where the layers below it are mounted as one tree.
func Diff(ctx context.Context, w io.Writer, lower, upper string) error {
	return errdefs.ErrNotImplemented
}

// Apply applies a layer that [Diff] wrote to the rootfs mounted at root.
func Apply(ctx context.Context, root string, layer io.Reader) error {
	return errdefs.ErrNotImplemented
}
