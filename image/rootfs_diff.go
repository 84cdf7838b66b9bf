package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Names of the OCI image specification for what is not there any more
// (https://github.com/opencontainers/image-spec/blob/v1.1.1/layer.md#whiteouts).
const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// DiffRootFS writes what upper changes in lower as an OCI layer, uncompressed. upper is an overlayfs upper directory or a
// [CaptureRootFS] of one, lower is where the layers below it are mounted as one tree; lower may be empty if there are none.
// The bytes depend on the files of upper alone, and not on the order in which its directories list them.
//
// The error is of kind FailedPrecondition for a file that no layer can hold; errors of w are passed on.
func DiffRootFS(ctx context.Context, w io.Writer, lower, upper string) (err error) {
	d := differ{ctx: ctx, upper: upper, lower: lower, tar: newLayerWriter(ctx, w)}
	defer func() { err = cmp.Or(err, d.close()) }()
	if err := d.mountIfMoved(); err != nil {
		return fullDisk(err)
	}
	if err := d.dir("", upper, lower); err != nil {
		return fullDisk(err)
	}
	return fullDisk(d.tar.close())
}

type differ struct {
	ctx          context.Context
	upper, lower string
	tar          *layerWriter
	merged       string // see mergedView; empty: not needed
	unmount      func() error
}

// dir writes the entries of an upper directory; name is its path in the layer. lower is the directory below that shows
// through it, empty if there is none.
func (d *differ) dir(name, upper, lower string) error {
	entries, err := listSorted(d.ctx, upper)
	if err != nil {
		return err
	}
	for _, fi := range entries {
		below, err := lstat(lower, fi.Name())
		if err != nil {
			return err
		}
		if err := d.entry(join(name, fi.Name()), filepath.Join(upper, fi.Name()), fi, lower, below); err != nil {
			return err
		}
	}
	return nil
}

// entry writes one entry of an upper directory; below is what it hides, nil if it hides nothing.
func (d *differ) entry(name, path string, fi os.FileInfo, lower string, below os.FileInfo) error {
	mark, err := readMark(path, fi)
	if err != nil {
		return err
	}
	switch {
	case mark.whiteout || fi.Mode()&os.ModeSocket != 0:
		if below == nil {
			return nil
		}
		return d.tar.whiteout(name)
	case !fi.IsDir():
		return d.file(name, path, fi, mark)
	}
	if err := d.tar.add(name, path, "", fi); err != nil {
		return err
	}
	shows := below != nil && below.IsDir() // entries below show through
	if shows && (mark.opaque || mark.moved) {
		if err := d.tar.whiteout(join(name, whiteoutOpaque)); err != nil {
			return err
		}
		shows = false
	}
	switch {
	case mark.moved && !mark.opaque:
		if err := d.tree(name, filepath.Join(d.merged, name)); err != nil {
			return err
		}
	case shows:
		if err := d.dir(name, path, filepath.Join(lower, fi.Name())); err != nil {
			return err
		}
	default:
		if err := d.dir(name, path, ""); err != nil {
			return err
		}
	}
	return d.tar.finishDir(name, path, fi)
}

// file writes what is not a directory.
func (d *differ) file(name, path string, fi os.FileInfo, mark overlayMark) error {
	if d.merged == "" {
		return d.tar.add(name, path, path, fi)
	}
	// One file may have names here and in a directory that moved: only the merged view knows them as one.
	merged := filepath.Join(d.merged, name)
	if fi.Sys().(*syscall.Stat_t).Nlink > 1 {
		var err error
		if fi, err = os.Lstat(merged); err != nil {
			return fmt.Errorf("read rootfs: %w", err)
		}
	}
	if mark.moved {
		return d.tar.add(name, path, merged, fi)
	}
	return d.tar.add(name, path, path, fi)
}

// tree writes all entries of a directory of the merged view.
func (d *differ) tree(name, path string) error {
	entries, err := listSorted(d.ctx, path)
	if err != nil {
		return err
	}
	for _, fi := range entries {
		name, path := join(name, fi.Name()), filepath.Join(path, fi.Name())
		if fi.Mode()&os.ModeSocket != 0 {
			continue
		}
		if err := d.tar.add(name, path, path, fi); err != nil {
			return err
		}
		if !fi.IsDir() {
			continue
		}
		if err := d.tree(name, path); err != nil {
			return err
		}
		if err := d.tar.finishDir(name, path, fi); err != nil {
			return err
		}
	}
	return nil
}

// mountIfMoved mounts the merged view if overlayfs moved anything in upper.
func (d *differ) mountIfMoved() error {
	moved, err := anyMoved(d.ctx, d.upper)
	if err != nil || !moved {
		return err
	}
	d.merged, d.unmount, err = mergedView(d.lower, d.upper)
	return err
}

func anyMoved(ctx context.Context, dir string) (bool, error) {
	entries, err := listSorted(ctx, dir)
	if err != nil {
		return false, err
	}
	for _, fi := range entries {
		path := filepath.Join(dir, fi.Name())
		mark, err := readMark(path, fi)
		if err != nil || mark.moved {
			return mark.moved, err
		}
		if !fi.IsDir() {
			continue
		}
		if moved, err := anyMoved(ctx, path); err != nil || moved {
			return moved, err
		}
	}
	return false, nil
}

func (d *differ) close() error {
	if d.unmount == nil {
		return nil
	}
	return d.unmount()
}

// listSorted lists a directory by name.
func listSorted(ctx context.Context, path string) ([]os.FileInfo, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read rootfs: %w", err)
	}
	all := make([]os.FileInfo, len(entries))
	for i, e := range entries {
		if all[i], err = e.Info(); err != nil {
			return nil, fmt.Errorf("read rootfs: %w", err)
		}
	}
	return all, nil
}

// lstat looks for an entry of a directory below; nil if there is none.
func lstat(dir, name string) (os.FileInfo, error) {
	if dir == "" {
		return nil, nil
	}
	fi, err := os.Lstat(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read rootfs: %w", err)
	}
	return fi, nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return strings.Join([]string{dir, name}, "/")
}
