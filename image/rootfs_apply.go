package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// What an entry of a layer costs to apply: a file is made, and each name on its path is looked up. A layer that Diff wrote has as many bytes for it, but for
// long paths.
const (
	entryCost = 1536    // bytes, times the square of how often its path has 16 names: each name is looked up by all that is before it
	spanCost  = 4 << 10 // bytes at least that each part of a sparse file takes on a disk
	maxDepth  = 128     // names of a path
)

// ApplyRootFS applies a layer that [DiffRootFS] wrote to the rootfs mounted at root. Names in the layer cannot lead out of root: that is
// the business of containerd's archive package, which does the work, but for the contents of files with holes, which stay holes. most bounds what the entries cost
// together, beside their contents: a small layer could have millions of files made.
//
// The error is of kind DataLoss for a layer that is no tar, or that DiffRootFS does not write, and of kind ResourceExhausted for a full file system; errors of layer are passed
// on. What was applied before an error stays: root must then be thrown away.
func ApplyRootFS(ctx context.Context, root string, layer io.Reader, most int64) error {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("apply rootfs difference: open %s: %w", root, err)
	}
	defer unix.Close(fd)
	b := &budget{left: most}
	e := entries{directories: map[string]bool{".": true}, budget: b}
	if _, err := archive.Apply(ctx, root, &sparseReader{layer: layer, root: fd, budget: b}, archive.WithFilter(e.filter)); err != nil {
		switch {
		case errdefs.IsDataLoss(err):
			return err
		case errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF):
			return layerError("", fmt.Sprintf("it is not a tar: %v", err))
		}
		return fullDisk(fmt.Errorf("apply rootfs difference: %w", err))
	}
	return nil
}

// budget is what the rest of a layer may cost.
type budget struct{ left int64 }

func (b *budget) take(name string, n int64) error {
	if b.left -= n; b.left < 0 {
		return layerError(name, "costs more than is allowed for a layer of this length (rule unpacked-size)")
	}
	return nil
}

// entries are those of a layer that were let pass.
type entries struct {
	directories map[string]bool
	fresh       string // the directory that the last one was; empty: it was another kind, or the directory's second entry
	budget      *budget
}

// filter refuses what Diff does not write, by which a few bytes could have much work done: an entry in a directory that was not listed before, an opaque directory that
// is not empty yet, something else in the place of a directory, and long paths.
func (e *entries) filter(h *tar.Header) (bool, error) {
	name := path.Join("/", h.Name)[1:]
	names := strings.Count(name, "/") + 1
	fresh := e.fresh
	e.fresh = ""
	switch {
	case names > maxDepth:
		return false, layerError(h.Name, fmt.Sprintf("has a path of more than %d names", maxDepth))
	case !e.directories[path.Dir(name)]:
		return false, layerError(h.Name, "is in a directory that the layer does not list before")
	case path.Base(name) == whiteoutOpaque && fresh != path.Dir(name):
		return false, layerError(h.Name, "does not follow its directory")
	case h.Typeflag == tar.TypeDir:
		if !e.directories[name] {
			e.fresh = name
		}
		e.directories[name] = true
	case e.directories[name]:
		return false, layerError(h.Name, "is in the place of a directory")
	}
	long := int64(names+15) / 16
	return true, e.budget.take(h.Name, long*long*entryCost)
}
