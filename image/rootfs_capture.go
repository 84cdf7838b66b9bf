package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// CaptureRootFS copies an overlayfs upper directory to dst, which it makes, with everything that makes it an upper
// directory: whiteouts, opaque marks, hard links, ownership, times, extended attributes. Sockets are left out. Files share
// their blocks with the original where the file system can do that. Nothing is synced to disk. On an error nothing is left of dst.
//
// Nothing may change in upper meanwhile: the container must stand still.
func CaptureRootFS(ctx context.Context, dst, upper string) error {
	if err := os.Mkdir(dst, 0o700); err != nil {
		return fullDisk(fmt.Errorf("capture rootfs: %w", err))
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	c := capturer{ctx: gctx, files: g, links: make(map[inode]string)}
	err := c.dir(dst, upper)
	if waitErr := g.Wait(); waitErr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = waitErr
	}
	// Last, and the innermost first: whatever is made in a directory changes its time.
	for i := len(c.dirs) - 1; i >= 0 && err == nil; i-- {
		err = copyMeta(c.dirs[i].dst, c.dirs[i].src, c.dirs[i].fi)
	}
	var long *fs.PathError
	if errors.As(err, &long) && errors.Is(long, syscall.ENAMETOOLONG) {
		at := strings.TrimPrefix(strings.TrimPrefix(long.Path, dst), upper)
		err = unsupportedError(at[:min(len(at), shownPath)]+"…", "is a path that is too long for the kernel")
	}
	if err != nil {
		return fullDisk(errors.Join(fmt.Errorf("capture rootfs: %w", err), os.RemoveAll(dst)))
	}
	return nil
}

// shownPath is how much of a path that is too long is in an error.
const shownPath = 100

type inode struct{ dev, ino uint64 }

type capturer struct {
	ctx   context.Context
	files *errgroup.Group  // copies of files' contents
	links map[inode]string // where an inode with several names is already
	dirs  []copiedDir      // parents before children
}

type copiedDir struct {
	dst, src string
	fi       os.FileInfo
}

// dir copies a directory whose copy exists already, but for its ownership, times and attributes.
func (c *capturer) dir(dst, src string) error {
	fi, err := os.Lstat(src)
	if err != nil {
		return err
	}
	c.dirs = append(c.dirs, copiedDir{dst, src, fi})
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if err := c.entry(filepath.Join(dst, e.Name()), filepath.Join(src, e.Name()), fi); err != nil {
			return err
		}
	}
	return nil
}

func (c *capturer) entry(dst, src string, fi os.FileInfo) error {
	st := fi.Sys().(*syscall.Stat_t)
	if fi.Mode()&os.ModeSocket != 0 {
		return nil
	}
	if !fi.IsDir() && st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := c.links[key]; ok {
			return os.Link(first, dst)
		}
		c.links[key] = dst
	}
	switch mode := fi.Mode(); {
	case mode.IsDir():
		if err := os.Mkdir(dst, 0o700); err != nil {
			return err
		}
		return c.dir(dst, src)
	case mode.IsRegular():
		// The name must exist before the next entry may link to it; the contents may come later.
		f, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		c.files.Go(func() error {
			if err := cmp.Or(copyData(c.ctx, f, src), f.Close()); err != nil {
				return fmt.Errorf("copy %s: %w", src, err)
			}
			return copyMeta(dst, src, fi)
		})
		return nil
	case mode&os.ModeSymlink != 0:
		target, err := os.Readlink(src)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, dst); err != nil {
			return err
		}
	default:
		if err := unix.Mknod(dst, st.Mode&(unix.S_IFMT|0o7777), int(st.Rdev)); err != nil {
			return &os.PathError{Op: "mknod", Path: dst, Err: err}
		}
	}
	return copyMeta(dst, src, fi)
}

// copyMeta sets dst's ownership, attributes, mode and times of src, in the order in which none undoes another.
func copyMeta(dst, src string, fi os.FileInfo) error {
	st := fi.Sys().(*syscall.Stat_t)
	if err := os.Lchown(dst, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := copyXattrs(dst, src); err != nil {
		return err
	}
	if fi.Mode()&os.ModeSymlink == 0 {
		if err := unix.Chmod(dst, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: dst, Err: err}
		}
	}
	times := []unix.Timespec{{Sec: st.Atim.Sec, Nsec: st.Atim.Nsec}, {Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dst, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimensat", Path: dst, Err: err}
	}
	return nil
}
