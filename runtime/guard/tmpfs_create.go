package guard

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// piece is how much is read or written at once, in bytes.
const piece = 1 << 20

// creator writes the image of one directory.
type creator struct {
	out io.Writer
	buf []byte // of the length piece
	dev uint64 // of the file system
	// links are the files with several names, by their inode, with the first name that was seen.
	links map[uint64]string
}

// create writes the image of what is in dir. Sockets are left out, as by GNU tar: CRIU makes those anew.
func create(dir string, w io.Writer) (err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	file := bufio.NewWriterSize(w, piece)
	z, err := gzip.NewWriterLevel(file, gzip.NoCompression)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	c := creator{out: z, buf: make([]byte, piece), dev: st.Dev, links: map[uint64]string{}}
	if err := c.directory(fd, "./", &st); err != nil {
		return err
	}
	_, err = z.Write(make([]byte, 2*format.TarBlock))
	if err := cmp.Or(err, z.Close(), file.Flush()); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}

// directory writes a directory and what is below it. It closes fd.
func (c *creator) directory(fd int, name string, st *unix.Stat_t) error {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	h := headerOf(name, tar.TypeDir, st)
	if err := readXattrs(fd, h); err != nil {
		return fmt.Errorf("read attributes of %q: %w", name, err)
	}
	if err := c.header(h); err != nil {
		return err
	}
	if st.Dev != c.dev { // something is mounted there
		return nil
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("read directory %q: %w", name, err)
	}
	for _, base := range names {
		if err := c.file(fd, base, name+base); err != nil {
			return err
		}
	}
	return nil
}

// file writes what a directory has under the name base.
func (c *creator) file(dir int, base, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("look at %q: %w", name, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFSOCK {
		return nil
	}
	if kind != unix.S_IFDIR && st.Nlink > 1 && st.Dev == c.dev {
		if first, seen := c.links[st.Ino]; seen {
			h := headerOf(name, tar.TypeLink, &st)
			h.Linkname = first
			return c.header(h)
		}
		c.links[st.Ino] = name
	}
	switch kind {
	case unix.S_IFDIR:
		fd, err := open(dir, base, unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("open %q: %w", name, err)
		}
		return c.directory(fd, name+"/", &st)
	case unix.S_IFREG:
		return c.regular(dir, base, headerOf(name, tar.TypeReg, &st), st.Size)
	case unix.S_IFLNK:
		h := headerOf(name, tar.TypeSymlink, &st)
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, target)
		if err != nil {
			return fmt.Errorf("read link %q: %w", name, err)
		}
		h.Linkname = string(target[:n])
		return c.header(h)
	case unix.S_IFIFO:
		return c.header(headerOf(name, tar.TypeFifo, &st))
	}
	h := headerOf(name, tar.TypeChar, &st)
	if kind == unix.S_IFBLK {
		h.Typeflag = tar.TypeBlock
	}
	h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	return c.header(h)
}

// regular writes a regular file.
func (c *creator) regular(dir int, base string, h *tar.Header, size int64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %q: %w", h.Name, err)
		}
	}()
	fd, err := open(dir, base, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer f.Close()
	if err := readXattrs(fd, h); err != nil {
		return err
	}
	h.Size = size
	spans, err := format.DataSpans(f, size)
	if err != nil {
		return err
	}
	if err := c.header(h, spans...); err != nil {
		return err
	}
	stored := int64(0)
	for _, x := range spans {
		n, err := io.CopyBuffer(c.out, io.NewSectionReader(f, x.Offset, x.Length), c.buf)
		if err == nil && n < x.Length {
			err = fmt.Errorf("the file has become shorter: %w", io.ErrUnexpectedEOF)
		}
		if err != nil {
			return err
		}
		stored += n
	}
	_, err = c.out.Write(make([]byte, format.TarPadding(stored)))
	return err
}

func (c *creator) header(h *tar.Header, contents ...format.DataSpan) error {
	b, err := format.EncodeTarHeader(h, contents)
	if err != nil {
		return fmt.Errorf("write %q: %w", h.Name, err)
	}
	_, err = c.out.Write(b)
	return err
}

func headerOf(name string, kind byte, st *unix.Stat_t) *tar.Header {
	return &tar.Header{
		Format: tar.FormatPAX, Name: name, Typeflag: kind, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()), AccessTime: time.Unix(st.Atim.Unix()),
	}
}

// open opens for reading, and leaves the time of the last access alone where the kernel allows that.
func open(dir int, base string, flags int) (int, error) {
	flags |= unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, base, flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		return unix.Openat(dir, base, flags, 0)
	}
	return fd, err
}
