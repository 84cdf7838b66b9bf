package rootfs

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/sparsetar"
)

// copyStep bounds one system call, so that cancelling is felt, in bytes.
const copyStep = 64 << 20

// copyData copies the contents of the file called src, holes as holes, by the cheapest way there is: shared blocks, a copy
// in the kernel, a copy through here. It gives the bytes copied.
func copyData(ctx context.Context, dst *os.File, src string) (int64, error) {
	// NONBLOCK: should the file be a fifo after all, opening it does not wait.
	f, err := os.OpenFile(src, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !fi.Mode().IsRegular() {
		return 0, errors.New("it was replaced while it was copied")
	}
	size := fi.Size()
	if size == 0 {
		return 0, nil
	}
	if unix.IoctlFileClone(int(dst.Fd()), int(f.Fd())) == nil {
		return size, nil
	}
	if err := dst.Truncate(size); err != nil {
		return 0, err
	}
	var total int64
	for at := int64(0); at < size; {
		from, to, err := sparsetar.NextData(f, at, size)
		if err != nil {
			return total, err
		}
		if err := copyRange(ctx, dst, f, from, to); err != nil {
			return total, err
		}
		total += to - from
		at = to
	}
	return total, nil
}

func copyRange(ctx context.Context, dst, src *os.File, from, to int64) error {
	in, out := from, from
	for in < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(min(to-in, copyStep)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
			return copyThrough(ctx, dst, src, in, to)
		case err != nil:
			return os.NewSyscallError("copy_file_range", err)
		case n == 0:
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}

func copyThrough(ctx context.Context, dst, src *os.File, from, to int64) error {
	buf := make([]byte, 1<<20)
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := buf[:min(to-from, int64(len(buf)))]
		if _, err := src.ReadAt(piece, from); err != nil {
			return err
		}
		if _, err := dst.WriteAt(piece, from); err != nil {
			return err
		}
		from += int64(len(piece))
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
