package tmpfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// extract makes in dir what an image has. Its errors come before, or together with, the image's end: what an image that is
// not sound has left is of no use.
func extract(dir string, r io.Reader) error {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	x := extractor{in: newStream(r), open: []directory{{fd: root}}}
	defer x.in.close()
	err = x.all()
	for len(x.open) > 0 {
		err = errors.Join(err, x.leave())
	}
	return err
}

// extractor makes files. It is in one directory at a time, and never follows a symbolic link.
type extractor struct {
	in   *stream
	open []directory // from the root to where it is
	made int64       // bytes of memory, see make
}

// Bounds of the memory that an image makes: memoryFree bytes, and memoryFactor times the length of the image. Images of this package are not compressed.
const (
	memoryFree   = 1 << 20
	memoryFactor = 100
	memoryEntry  = 1 << 10 // about what the kernel takes for a file without contents
)

// Rule is the name of the rule by which an image is refused that unpacks to more.
const Rule = "unpacked-size"

// take counts memory before it is made. The contents of a container's memory may be zeros for the most part, but these make none.
func (x *extractor) take(n int64) error {
	if x.made += n; x.made > memoryFree+memoryFactor*x.in.compressed.Load() {
		return fmt.Errorf("the image unpacks to more than %d bytes and %d times its length (rule %s)", memoryFree, memoryFactor, Rule)
	}
	return nil
}

func (x *extractor) all() error {
	for {
		e, err := decode(x.in)
		if err == errEnd {
			return x.end()
		}
		if err != nil {
			return err
		}
		err = x.take(memoryEntry + e.attributes())
		if err == nil {
			err = x.entry(e)
		}
		if err != nil {
			return fmt.Errorf("make %.300q: %w", e.name, err)
		}
	}
}

// end reads what follows: zeros, and what gzip has to say on whether all before was sound.
func (x *extractor) end() error {
	for {
		b, err := x.in.take(inPiece)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.Trim(string(b), "\x00") != "" {
			return errors.New("the image goes on after its end")
		}
	}
}

// entry makes one file.
func (x *extractor) entry(e *entry) error {
	path, err := split(e.name)
	if err != nil {
		return err
	}
	if len(path) == 0 {
		if e.kind != typeDirectory {
			return errors.New("the directory itself is none")
		}
		x.open[0].set = e
		return nil
	}
	dir, err := x.enter(path[:len(path)-1])
	if err != nil {
		return err
	}
	base := path[len(path)-1]
	switch e.kind {
	case typeDirectory:
		if err := unix.Mkdirat(dir, base, 0o700); err != nil && err != unix.EEXIST {
			return err
		}
		if _, err := x.enter(path); err != nil {
			return err
		}
		x.open[len(x.open)-1].set = e
		return nil
	case typeFile:
		return x.regular(dir, base, e)
	case typeHardLink:
		return x.link(dir, base, e)
	case typeSymlink:
		if err := unix.Symlinkat(e.link, dir, base); err != nil {
			return err
		}
		return setByName(dir, base, e)
	case typeFIFO:
		err = unix.Mknodat(dir, base, unix.S_IFIFO|0o600, 0)
	case typeCharacter:
		err = unix.Mknodat(dir, base, unix.S_IFCHR|0o600, int(unix.Mkdev(e.major, e.minor)))
	case typeBlock:
		err = unix.Mknodat(dir, base, unix.S_IFBLK|0o600, int(unix.Mkdev(e.major, e.minor)))
	}
	if err != nil {
		return err
	}
	return setByName(dir, base, e)
}

// regular makes a regular file with its contents.
func (x *extractor) regular(dir int, base string, e *entry) (err error) {
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	extents := e.extents
	if !e.sparse {
		extents = []extent{{length: e.size}}
	}
	if err := unix.Ftruncate(fd, e.size); err != nil {
		return err
	}
	for _, part := range extents {
		if err := x.contents(fd, part); err != nil {
			return err
		}
	}
	if err := x.skip(padding(e.stored())); err != nil {
		return err
	}
	if err := setAttributes(fd, e); err != nil {
		return err
	}
	return setTimes(dir, base, e)
}

// contents writes one part of a file, but for its pages of zeros.
func (x *extractor) contents(fd int, part extent) error {
	for part.length > 0 {
		b, err := x.in.take(part.length)
		if err != nil {
			return cut(err)
		}
		part.length -= int64(len(b))
		for len(b) > 0 {
			n, zero := pages(b, part.offset)
			if !zero {
				if err := x.take(int64(n)); err != nil {
					return err
				}
				if err := write(fd, b[:n], part.offset); err != nil {
					return err
				}
			}
			b = b[n:]
			part.offset += int64(n)
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

func write(fd int, b []byte, offset int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, offset)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
		offset += int64(n)
	}
	return nil
}

func (x *extractor) skip(n int64) error {
	for n > 0 {
		b, err := x.in.take(n)
		if err != nil {
			return cut(err)
		}
		n -= int64(len(b))
	}
	return nil
}

// link gives a file that was made before another name.
func (x *extractor) link(dir int, base string, e *entry) error {
	path, err := split(e.link)
	if err != nil || len(path) == 0 {
		return fmt.Errorf("it is a link to %.300q", e.link)
	}
	at, err := unix.FcntlInt(uintptr(x.open[0].fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	for _, name := range path[:len(path)-1] {
		next, err := openDirectory(at, name)
		if err != nil {
			return fmt.Errorf("it is a link to %.300q: %w", e.link, err)
		}
		_ = unix.Close(at)
		at = next
	}
	return unix.Linkat(at, path[len(path)-1], dir, base, 0)
}
