package image

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// sparseReader passes a layer on, and of a sparse file the header of an empty one. It writes the contents itself when it is asked for
// what comes next, for then the reader has made that file. What Diff does not write, it refuses.
type sparseReader struct {
	layer io.Reader
	root  int             // directory that the layer is applied to
	ready []byte          // to pass on
	left  int64           // after that: bytes of the layer to pass on
	file  *format.TarHead // a sparse file whose header was passed on
	ended bool

	budget *budget
}

// Read implements [io.Reader].
func (r *sparseReader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 && r.left == 0 {
		if r.ended {
			return r.layer.Read(p)
		}
		if r.file != nil {
			f := r.file
			r.file = nil
			if err := r.fill(f); err != nil {
				return 0, err
			}
		}
		if err := r.header(); err != nil {
			return 0, err
		}
	}
	if len(r.ready) > 0 {
		n := copy(p, r.ready)
		r.ready = r.ready[n:]
		return n, nil
	}
	n, err := r.layer.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	if err == io.EOF && r.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// header reads up to the contents of the next entry.
func (r *sparseReader) header() error {
	h, err := format.ReadTarHead(r.layer)
	switch {
	case err == io.EOF:
		r.ready, r.ended = make([]byte, format.TarBlock), true
		return nil
	case errors.Is(err, format.ErrTar):
		return layerError("", err.Error())
	case err != nil:
		return err
	}
	r.ready = h.Raw
	if h.Sparse {
		r.file = h
	} else {
		r.left = h.Stored + format.TarPadding(h.Stored)
	}
	return nil
}

// fill writes the contents of a file that exists already. The file keeps its owner, mode, times and attributes.
func (r *sparseReader) fill(f *format.TarHead) (err error) {
	refuse := func(reason string) error { return layerError(f.Name, "is a sparse file "+reason) }
	spans, err := f.ReadMap(r.layer)
	if errors.Is(err, format.ErrTar) {
		return layerError("", err.Error())
	} else if err != nil {
		return err
	}
	for _, x := range spans {
		if err := r.budget.take(f.Name, max(x.Length, spanCost)); err != nil {
			return err
		}
	}
	fd, err := unix.Openat2(r.root, strings.TrimLeft(f.Name, "/"), &unix.OpenHow{
		Flags: unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return refuse("which cannot be opened: " + err.Error())
	}
	file := os.NewFile(uintptr(fd), f.Name)
	defer func() { err = errors.Join(err, file.Close()) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
		return refuse("in the place of something else")
	}
	capability := make([]byte, 64)
	n, err := unix.Fgetxattr(fd, xattrCapability, capability) // writing takes it away
	if err != nil {
		n = 0
	}
	if err := file.Truncate(f.Size); err != nil {
		return err
	}
	for _, x := range spans {
		if _, err := io.CopyN(io.NewOffsetWriter(file, x.Offset), r.layer, x.Length); err != nil {
			return err
		}
	}
	if n > 0 {
		if err := unix.Fsetxattr(fd, xattrCapability, capability[:n], 0); err != nil {
			return os.NewSyscallError("fsetxattr", err)
		}
	}
	if err := unix.UtimesNanoAt(fd, "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH); err != nil {
		return os.NewSyscallError("utimensat", err)
	}
	_, err = io.CopyN(io.Discard, r.layer, format.TarPadding(f.Stored))
	return err
}
