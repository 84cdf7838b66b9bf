package guard

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/runtime/channel"
)

// extract makes in dir what an image has. Its errors come before, or together with, the image's end: what an image that is
// not sound has left is of no use.
func extract(dir string, r io.Reader) error {
	root, err := os.OpenFile(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer root.Close()
	x := extractor{root: root, parent: root, length: new(int64), buf: make([]byte, piece), leftOut: map[string]bool{}}
	defer func() { _ = x.parent.Close() }() // it may be root
	defer x.closeMaker()
	if x.in, err = gzip.NewReader(bufio.NewReaderSize(&counted{r, x.length}, piece)); err != nil {
		return cut(err)
	}
	if err := x.all(); err != nil {
		return err
	}
	for _, h := range slices.Backward(x.directories) {
		if err := x.finish(h); err != nil {
			return fmt.Errorf("directory %.300q: %w", h.Name, err)
		}
	}
	return nil
}

// extractor makes files, below root only, and never follows a symbolic link.
type extractor struct {
	root        *os.File
	parent      *os.File // the directory of the last entry, or root
	in          io.Reader
	length      *int64            // of the image, as far as it was read, in bytes
	buf         []byte            // of the length piece
	directories []*format.TarHead // their owner, mode and times are set at the end: the files in them change them
	made        int64             // bytes of memory, see take
	maker       *channel.Channel  // makes device nodes; nil until the first one
	leftOut     map[string]bool   // names of device nodes that the container may not have
}

// Bounds of the memory that an image makes: memoryFree bytes, and memoryFactor times the length of the image. Images of this package are not compressed.
const (
	memoryFree   = 1 << 20
	memoryFactor = 100
	memoryEntry  = 1 << 10 // about what the kernel takes for a file without contents
)

// TmpfsRule is the name of the rule by which an image is refused that unpacks to more.
const TmpfsRule = "unpacked-size"

// take counts memory before it is made. The contents of a container's memory may be zeros for the most part, but these make none.
func (x *extractor) take(n int64) error {
	if x.made += n; x.made > memoryFree+memoryFactor**x.length {
		return fmt.Errorf("the image unpacks to more than %d bytes and %d times its length (rule %s)", memoryFree, memoryFactor, TmpfsRule)
	}
	return nil
}

func (x *extractor) all() error {
	for {
		h, err := format.ReadTarHead(x.in)
		if err == io.EOF {
			return x.end()
		}
		if err != nil {
			return cut(err)
		}
		attributes := len(h.Name) + len(h.Linkname)
		for key, value := range h.PAXRecords {
			attributes += len(key) + len(value)
		}
		err = x.take(memoryEntry + int64(attributes))
		if err == nil {
			err = x.entry(h)
		}
		if err != nil {
			return fmt.Errorf("make %.300q: %w", h.Name, err)
		}
	}
}

// end reads what follows: zeros, and what gzip has to say on whether all before was sound.
func (x *extractor) end() error {
	for {
		n, err := x.in.Read(x.buf)
		if len(bytes.Trim(x.buf[:n], "\x00")) > 0 {
			return errors.New("the image goes on after its end")
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return cut(err)
		}
	}
}

// entry makes one file.
func (x *extractor) entry(h *format.TarHead) error {
	parent, base, err := split(h.Name)
	if err != nil {
		return err
	}
	if x.parent.Name() != parent {
		entered, err := x.directory(parent)
		if err != nil {
			return err
		}
		if x.parent != x.root {
			_ = x.parent.Close()
		}
		x.parent = entered
	}
	dir := int(x.parent.Fd())
	switch h.Typeflag {
	case tar.TypeDir:
		x.directories = append(x.directories, h)
		if err := unix.Mkdirat(dir, base, 0o700); err != nil && err != unix.EEXIST {
			return err
		}
		return nil
	case tar.TypeReg:
		return x.regular(dir, base, h)
	case tar.TypeLink:
		return x.link(dir, base, h)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, dir, base); err != nil {
			return err
		}
		return setByName(dir, base, h)
	case tar.TypeFifo:
		err = unix.Mknodat(dir, base, unix.S_IFIFO|0o600, 0)
	case tar.TypeChar, tar.TypeBlock:
		made, err := x.node(dir, base, h)
		if !made || err != nil {
			return err
		}
		return setTimes(dir, base, h)
	}
	if err != nil {
		return err
	}
	return setByName(dir, base, h)
}

// regular makes a regular file with its contents.
func (x *extractor) regular(dir int, base string, h *format.TarHead) (err error) {
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer func() { err = errors.Join(err, f.Close()) }()
	spans := []format.DataSpan{{Length: h.Size}}
	if h.Sparse {
		if spans, err = h.ReadMap(x.in); err != nil {
			return cut(err)
		}
	}
	if err := f.Truncate(h.Size); err != nil {
		return err
	}
	for _, part := range spans {
		if err := x.contents(f, part); err != nil {
			return err
		}
	}
	if _, err := io.ReadFull(x.in, x.buf[:format.TarPadding(h.Stored)]); err != nil {
		return cut(err)
	}
	if err := setAttributes(fd, h); err != nil {
		return err
	}
	return setTimes(dir, base, h)
}

// contents writes one part of a file, but for its pages of zeros.
func (x *extractor) contents(f *os.File, part format.DataSpan) error {
	for part.Length > 0 {
		b := x.buf[:min(part.Length, piece)]
		if _, err := io.ReadFull(x.in, b); err != nil {
			return cut(err)
		}
		part.Length -= int64(len(b))
		for len(b) > 0 {
			n, zero := pages(b, part.Offset)
			if !zero {
				if err := x.take(int64(n)); err != nil {
					return err
				}
				if _, err := f.WriteAt(b[:n], part.Offset); err != nil {
					return err
				}
			}
			b = b[n:]
			part.Offset += int64(n)
		}
	}
	return nil
}

// pages tells how much of b, which belongs at an offset, are pages of zeros, or pages of anything else.
func pages(b []byte, offset int64) (n int, zero bool) {
	for n < len(b) {
		next := min(n+pageSize-int((offset+int64(n))%pageSize), len(b))
		if z := bytes.Equal(b[n:next], zeroPage[:next-n]); n == 0 {
			zero = z
		} else if z != zero {
			break
		}
		n = next
	}
	return n, zero
}

// pageSize is the smallest that the kernel has.
const pageSize = 4096

var zeroPage [pageSize]byte

// link gives a file that was made before another name.
func (x *extractor) link(dir int, base string, h *format.TarHead) error {
	parent, target, err := split(h.Linkname)
	if err != nil {
		return fmt.Errorf("it is a link to %.300q: %w", h.Linkname, err)
	}
	at, err := x.directory(parent)
	if err != nil {
		return fmt.Errorf("it is a link to %.300q: %w", h.Linkname, err)
	}
	defer at.Close()
	if x.leftOut[filepath.Join(parent, target)] {
		x.leftOut[filepath.Join(x.parent.Name(), base)] = true
		return nil
	}
	return unix.Linkat(int(at.Fd()), target, dir, base, 0)
}

// split returns the directory of a file that the image names, and the file's name in it. The root is "." in itself.
func split(name string) (dir, base string, err error) {
	if !filepath.IsLocal(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return "", "", errors.New("its name is not one in the directory")
	}
	return filepath.Dir(filepath.Clean(name)), filepath.Base(name), nil
}

// directory opens a directory below the root.
func (x *extractor) directory(name string) (*os.File, error) {
	fd, err := unix.Openat2(int(x.root.Fd()), name, &unix.OpenHow{Flags: unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// finish sets what is to be set of a directory.
func (x *extractor) finish(h *format.TarHead) error {
	dir, err := x.directory(h.Name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := setAttributes(int(dir.Fd()), h); err != nil {
		return err
	}
	return setTimes(int(dir.Fd()), ".", h)
}

// cut returns what an end means where none may be.
func cut(err error) error {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the image is cut short: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("read the image: %w", err)
}

// counted counts what is read.
type counted struct {
	r io.Reader
	n *int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	*c.n += int64(n)
	return n, err
}
