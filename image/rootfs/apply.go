package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Apply applies a layer that [Diff] wrote to the rootfs mounted at root. Names in the layer cannot lead out of root: that is
// the business of containerd's archive package, which does the work, but for the contents of files with holes, which stay holes.
//
// A layer that is not a tar, or one that Diff does not write, gives an error of kind DataLoss, a full file system one of kind ResourceExhausted; errors of layer are passed
// on. What was applied before an error stays: root must then be thrown away.
func Apply(ctx context.Context, root string, layer io.Reader) error {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("apply rootfs difference: open %s: %w", root, err)
	}
	defer unix.Close(fd)
	listed := directories{".": true}
	if _, err := archive.Apply(ctx, root, &sparseReader{layer: layer, root: fd}, archive.WithFilter(listed.filter)); err != nil {
		switch {
		case errdefs.IsDataLoss(err):
			return err
		case errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF):
			return layerError("", fmt.Sprintf("it is not a tar: %v", err))
		}
		return full(fmt.Errorf("apply rootfs difference: %w", err))
	}
	return nil
}

// directories are those that a layer has listed.
type directories map[string]bool

// filter refuses what is in a directory that the layer has not listed: a name of a few bytes could have thousands of directories made.
func (d directories) filter(h *tar.Header) (bool, error) {
	name := path.Join("/", h.Name)[1:]
	if !d[path.Dir(name)] {
		return false, layerError(h.Name, "is in a directory that the layer does not list before")
	}
	if h.Typeflag == tar.TypeDir {
		d[name] = true
	}
	return true, nil
}
