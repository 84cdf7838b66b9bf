package image

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// copyStep bounds one system call, so that cancelling is felt, in bytes.
const copyStep = 64 << 20

// copyData copies the contents of the file called src, holes as holes, by the cheapest way there is: shared blocks, a copy
// in the kernel, a copy through here.
func copyData(ctx context.Context, dst *os.File, src string) error {
	// NONBLOCK: should the file be a fifo after all, opening it does not wait.
	f, err := os.OpenFile(src, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return errors.New("it was replaced while it was copied")
	}
	size := fi.Size()
	if size == 0 || unix.IoctlFileClone(int(dst.Fd()), int(f.Fd())) == nil {
		return nil
	}
	if err := dst.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		from, to, err := format.NextData(f, at, size)
		if err != nil {
			return err
		}
		if err := copyRange(ctx, dst, f, from, to); err != nil {
			return err
		}
		at = to
	}
	return nil
}

// copyRange has the kernel copy, where it can: see [os.File.ReadFrom].
func copyRange(ctx context.Context, dst, src *os.File, from, to int64) error {
	for at := from; at < to; {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, f := range []*os.File{src, dst} {
			if _, err := f.Seek(at, io.SeekStart); err != nil {
				return err
			}
		}
		n, err := io.CopyN(dst, src, min(to-at, copyStep))
		if at += n; err == io.EOF {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
	}
	return nil
}

// copyXattrs copies all extended attributes, overlayfs's own included.
func copyXattrs(dst, src string) error {
	names, err := listXattrs(src)
	if err != nil {
		return err
	}
	for _, name := range names {
		value, err := sysx.LGetxattr(src, name)
		if err != nil {
			return &os.PathError{Op: "lgetxattr " + name, Path: src, Err: err}
		}
		if err := sysx.LSetxattr(dst, name, value, 0); err != nil {
			return &os.PathError{Op: "lsetxattr " + name, Path: dst, Err: err}
		}
	}
	return nil
}
