package format

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// DirectFile is an open file. Its methods may be used from several goroutines at once.
type DirectFile struct {
	f       *os.File
	open    sync.Once
	direct  *os.File    // the same file with O_DIRECT; nil: the file system refuses it
	refused atomic.Bool // it has refused a read or a write
}

// NewDirectFile returns f, which is closed with it. Whatever else is done with f fits together with what is done here.
func NewDirectFile(f *os.File) *DirectFile { return &DirectFile{f: f} }

// past returns the file that goes past the page cache, nil if there is none. It is a second descriptor, opened when it is needed: a
// switch of the first (F_SETFL) would be seen by all who use it.
func (f *DirectFile) past() *os.File {
	f.open.Do(func() {
		fd := int(f.f.Fd())
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return
		}
		// Also for a file that has no name any more. Whatever the error is, the first descriptor works.
		past, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags&unix.O_ACCMODE|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err == nil {
			f.direct = os.NewFile(uintptr(past), f.f.Name())
		}
	})
	if f.refused.Load() {
		return nil
	}
	return f.direct
}

// WriteAt implements [io.WriterAt]. What begins at a multiple of [DirectAlign], in memory as in the file, goes past the page cache but for a
// rest at its end.
func (f *DirectFile) WriteAt(b []byte, off int64) (n int, err error) {
	if whole := down(len(b)); whole >= least && off%DirectAlign == 0 && aligned(b) {
		if past := f.past(); past != nil {
			n, err = past.WriteAt(b[:whole], off)
			if err = f.refuse(err); err != nil {
				return n, err
			}
		}
	}
	if n == len(b) {
		return n, nil
	}
	rest, err := f.f.WriteAt(b[n:], off+int64(n))
	return n + rest, err
}

// refuse takes away the error of a file system, or a disk with larger sectors, that does not go past the page cache.
func (f *DirectFile) refuse(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		f.refused.Store(true)
		return nil
	}
	return err
}

// ReadAt implements [io.ReaderAt].
func (f *DirectFile) ReadAt(p []byte, off int64) (int, error) {
	if len(p) < least || off < 0 || f.Cached(off, int64(len(p))) {
		return f.f.ReadAt(p, off)
	}
	past := f.past()
	if past == nil {
		return f.f.ReadAt(p, off)
	}
	n, err := readPast(past, p, off)
	if err == io.EOF || err == nil {
		return n, err
	}
	if err = f.refuse(err); err != nil {
		return n, err
	}
	rest, err := f.f.ReadAt(p[n:], off+int64(n))
	return n + rest, err
}

// readPast fills p, through a buffer unless all of it is aligned.
func readPast(past *os.File, p []byte, off int64) (n int, err error) {
	if off%DirectAlign != 0 || len(p)%DirectAlign != 0 || !aligned(p) {
		b := LendBuffer()
		defer ReturnBuffer(b)
		return readThrough(past, b[:room], p, off)
	}
	for n < len(p) {
		got, err := pread(past, p[n:], off+int64(n))
		n += got
		if err == nil && (got == 0 || got%DirectAlign != 0) {
			err = io.EOF
		}
		if n < len(p) && err != nil {
			return n, err
		}
	}
	return n, nil
}

// readThrough fills p through buf.
func readThrough(past *os.File, buf, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		at := off + int64(n)
		skip := int(at % DirectAlign)
		want := min(len(buf), AlignUp(skip+len(p)-n))
		got, err := pread(past, buf[:want], at-int64(skip))
		n += copy(p[n:], buf[min(skip, got):got])
		if err == nil && (got <= skip || got%DirectAlign != 0) {
			err = io.EOF
		}
		if n < len(p) && err != nil {
			return n, err
		}
	}
	return n, nil
}

// pread reads once: a file with O_DIRECT cannot be read on from where another file would end.
func pread(f *os.File, p []byte, off int64) (int, error) {
	for {
		n, err := unix.Pread(int(f.Fd()), p, off)
		if err != unix.EINTR {
			if err != nil {
				return 0, &os.PathError{Op: "read", Path: f.Name(), Err: err}
			}
			return n, nil
		}
	}
}

// How reading ahead is asked for. By default a kernel reads no more than 128 KiB when it is asked to, and forgets the rest.
const (
	aheadStep  = 128 << 10 // bytes
	aheadQueue = 4 << 20   // bytes that the disk is asked for at once: others that read from it wait for as many
)

// ReadAhead brings the first n bytes into the page cache, until ctx ends. What it cannot bring is read later by the reader that wants it, and fails there.
func (f *DirectFile) ReadAhead(ctx context.Context, n int64) {
	one := make([]byte, 1)
	for off := int64(0); off < n && ctx.Err() == nil; off += aheadStep {
		if err := unix.Fadvise(int(f.f.Fd()), off, min(aheadStep, n-off), unix.FADV_WILLNEED); err != nil {
			return
		}
		if come := off - aheadQueue; come >= 0 {
			_, _ = f.f.ReadAt(one, come) // waits for it
		}
	}
}

// Close implements [io.Closer].
func (f *DirectFile) Close() error {
	f.open.Do(func() {}) // it is not opened any more
	err := f.f.Close()
	if f.direct != nil {
		err = errors.Join(err, f.direct.Close())
	}
	return err
}
