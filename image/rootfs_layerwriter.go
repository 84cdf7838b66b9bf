package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// paxXattr is the prefix of extended attributes in a tar, as GNU tar, star and containerd have it.
const paxXattr = "SCHILY.xattr."

// layerWriter writes entries of an OCI layer. It is archive.ChangeWriter of containerd, but for what that leaves out: extended
// attributes other than capabilities, fractions of a second, and entries below a symbolic link's name.
type layerWriter struct {
	ctx   context.Context
	w     io.Writer
	links map[inode]string // names of inodes that have several
	buf   []byte
}

func newLayerWriter(ctx context.Context, w io.Writer) *layerWriter {
	return &layerWriter{ctx: ctx, w: w, links: make(map[inode]string), buf: make([]byte, 1<<20)}
}

func (l *layerWriter) close() error {
	if _, err := l.w.Write(make([]byte, 2*format.TarBlock)); err != nil {
		return fmt.Errorf("write rootfs difference: %w", err)
	}
	return nil
}

// whiteout writes that name, or with the opaque marker all of a directory below, is gone.
func (l *layerWriter) whiteout(name string) error {
	if base := name[strings.LastIndexByte(name, '/')+1:]; base != whiteoutOpaque {
		if strings.HasPrefix(base, whiteoutPrefix) {
			return unsupportedError(name, "has a name that means a deleted file in a layer")
		}
		name = strings.TrimSuffix(name, base) + whiteoutPrefix + base
	}
	return l.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}

// add writes the entry at path, with the contents of the file data if it is a regular one.
func (l *layerWriter) add(name, path, data string, fi os.FileInfo) error {
	h, err := l.describe(name, path, fi)
	if err != nil {
		return err
	}
	delete(h.PAXRecords, paxXattr+xattrDefaultACL) // see finishDir
	st := fi.Sys().(*syscall.Stat_t)
	if !fi.IsDir() && st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := l.links[key]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else {
			l.links[key] = name
		}
	}
	if h.Typeflag != tar.TypeReg || h.Size == 0 {
		return l.header(h)
	}
	return l.file(h, data)
}

// finishDir follows a directory's entries. Whatever is made in a directory with a default access control list inherits it,
// so the directory comes first without and, once more, here with it.
func (l *layerWriter) finishDir(name, path string, fi os.FileInfo) error {
	h, err := l.describe(name, path, fi)
	if err != nil {
		return err
	}
	if _, ok := h.PAXRecords[paxXattr+xattrDefaultACL]; !ok {
		return nil
	}
	return l.header(h)
}

func (l *layerWriter) describe(name, path string, fi os.FileInfo) (*tar.Header, error) {
	if strings.HasPrefix(fi.Name(), whiteoutPrefix) {
		return nil, unsupportedError(name, "has a name that means a deleted file in a layer")
	}
	if strings.Count(name, "/")+1 >= maxDepth { // an opaque directory has one name more
		return nil, unsupportedError(name, fmt.Sprintf("has a path of %d names or more", maxDepth))
	}
	st := fi.Sys().(*syscall.Stat_t)
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), Format: tar.FormatPAX,
	}
	switch mode := fi.Mode(); {
	case mode.IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	case mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case mode&os.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return nil, fmt.Errorf("read rootfs: %w", err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case mode&os.ModeNamedPipe != 0:
		h.Typeflag = tar.TypeFifo
	case mode&os.ModeDevice != 0:
		h.Typeflag = tar.TypeBlock
		if mode&os.ModeCharDevice != 0 {
			h.Typeflag = tar.TypeChar
		}
		h.Devmajor, h.Devminor = int64(unix.Major(uint64(st.Rdev))), int64(unix.Minor(uint64(st.Rdev)))
	default:
		return nil, unsupportedError(name, fmt.Sprintf("is of a kind that no layer can hold (%s)", mode))
	}
	return h, l.xattrs(h, path)
}

func (l *layerWriter) xattrs(h *tar.Header, path string) error {
	names, err := listXattrs(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !kept(name) {
			continue
		}
		if strings.Contains(name, "=") {
			return unsupportedError(h.Name, fmt.Sprintf("has an extended attribute %q, whose name no tar can hold", name))
		}
		value, err := sysx.LGetxattr(path, name)
		if errors.Is(err, unix.ENODATA) {
			continue
		} else if err != nil {
			return fmt.Errorf("read attribute %s of %s: %w", name, path, err)
		}
		if h.PAXRecords == nil {
			h.PAXRecords = make(map[string]string)
		}
		h.PAXRecords[paxXattr+name] = string(value)
	}
	return nil
}

// header writes what comes before the contents of an entry, of which the spans are to follow.
func (l *layerWriter) header(h *tar.Header, contents ...format.DataSpan) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	b, err := format.EncodeTarHeader(h, contents)
	if err == nil {
		_, err = l.w.Write(b)
	}
	if err != nil {
		return fmt.Errorf("write rootfs difference: %q: %w", h.Name, err)
	}
	return nil
}

// file writes a regular file with the contents of the one at path.
func (l *layerWriter) file(h *tar.Header, path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("read rootfs: %w", err)
	}
	defer f.Close()
	spans, err := format.DataSpans(f, h.Size)
	if err != nil {
		return fmt.Errorf("read rootfs: %q: %w", h.Name, err)
	}
	if err := l.header(h, spans...); err != nil {
		return err
	}
	stored := int64(0)
	for _, x := range spans {
		n, err := io.CopyBuffer(l.w, io.NewSectionReader(f, x.Offset, x.Length), l.buf)
		if n < x.Length && err == nil {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("write rootfs difference: %q: %w", h.Name, err)
		}
		stored += n
	}
	if _, err := l.w.Write(make([]byte, format.TarPadding(stored))); err != nil {
		return fmt.Errorf("write rootfs difference: %q: %w", h.Name, err)
	}
	return nil
}
