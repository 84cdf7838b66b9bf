package tmpfs

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// creator writes the image of one directory.
type creator struct {
	out *storedWriter
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
	c := creator{out: newStoredWriter(w), dev: st.Dev, links: map[uint64]string{}}
	err = c.directory(fd, "./", &st)
	if err == nil {
		_, err = c.out.Write(make([]byte, 2*blockSize))
	}
	return c.out.close(err)
}

// directory writes a directory and what is below it. It closes fd.
func (c *creator) directory(fd int, name string, st *unix.Stat_t) error {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	e := entryOf(name, typeDirectory, st)
	var err error
	if e.xattrs, err = readXattrs(fd); err != nil {
		return fmt.Errorf("read attributes of %q: %w", name, err)
	}
	if err := c.write(e); err != nil {
		return err
	}
	if st.Dev != c.dev { // something is mounted there
		return nil
	}
	for {
		names, err := f.Readdirnames(1024)
		for _, base := range names {
			if err := c.file(fd, base, name+base); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read directory %q: %w", name, err)
		}
	}
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
			e := entryOf(name, typeHardLink, &st)
			e.link = first
			return c.write(e)
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
		return c.regular(dir, base, entryOf(name, typeFile, &st), st.Size)
	case unix.S_IFLNK:
		e := entryOf(name, typeSymlink, &st)
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, target)
		if err != nil {
			return fmt.Errorf("read link %q: %w", name, err)
		}
		e.link = string(target[:n])
		return c.write(e)
	case unix.S_IFIFO:
		return c.write(entryOf(name, typeFIFO, &st))
	}
	e := entryOf(name, typeCharacter, &st)
	if kind == unix.S_IFBLK {
		e.kind = typeBlock
	}
	e.major, e.minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	return c.write(e)
}

// regular writes a regular file.
func (c *creator) regular(dir int, base string, e *entry, size int64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %q: %w", e.name, err)
		}
	}()
	fd, err := open(dir, base, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), e.name)
	defer f.Close()
	if e.xattrs, err = readXattrs(fd); err != nil {
		return err
	}
	e.size = size
	whole := extent{length: size}
	extents, err := readExtents(fd, size)
	if err != nil {
		return err
	}
	if size > 0 && (len(extents) != 1 || extents[0] != whole) {
		e.sparse, e.extents = true, extents
	}
	if err := c.write(e); err != nil {
		return err
	}
	for _, x := range extents {
		if err := c.out.readAt(f, x.offset, x.length); err != nil {
			return err
		}
	}
	_, err = c.out.Write(make([]byte, padding(e.stored())))
	return err
}

func (c *creator) write(e *entry) error {
	b, err := encode(e)
	if err != nil {
		return err
	}
	_, err = c.out.Write(b)
	return err
}

func entryOf(name string, kind byte, st *unix.Stat_t) *entry {
	return &entry{name: name, kind: kind, mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid, mtime: st.Mtim, atime: st.Atim}
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

// readExtents gives the parts of a file that are not holes. Source: lseek(2).
func readExtents(fd int, size int64) (extents []extent, err error) {
	for at := int64(0); at < size; {
		start, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break
		}
		if err != nil {
			return nil, err
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if start >= size || end <= start {
			break
		}
		at = min(end, size)
		if len(extents) == maxExtents {
			return nil, fmt.Errorf("it has more than %d holes", maxExtents)
		}
		extents = append(extents, extent{start, at - start})
	}
	return extents, nil
}
