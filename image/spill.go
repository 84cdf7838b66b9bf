package image

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// spill are files without a name for what has to wait: pages that come faster than they can be hashed, and frames of which it is not
// known yet to which segment they belong. A file takes one write at a time, so there are several.
type spill struct {
	files   []spillFile
	fds     []int // of files
	end     atomic.Int64
	waiting atomic.Int64 // bytes of pages that are there
	room    int64        // most of them, bytes
}

// spilledFrame is a frame that lies in the spill.
type spilledFrame struct {
	frame format.Frame
	at    int64
}

// spillFile is a file, through the page cache or past it.
type spillFile interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// spillFiles is how many files there are.
const spillFiles = 8

// newSpill makes the files in dir. Through the page cache, a core copies what is written, and the writer waits for the disk only when the
// kernel has too much that waits for it; what is read back by then is never written.
func newSpill(dir string, cached bool) (*spill, error) {
	s := &spill{}
	for range spillFiles {
		f, err := os.CreateTemp(dir, "spill-")
		if err == nil {
			s.fds = append(s.fds, int(f.Fd()))
			if cached {
				s.files = append(s.files, f)
			} else {
				s.files = append(s.files, format.NewDirectFile(f))
			}
			err = os.Remove(f.Name()) // nothing has to be cleared up after a process that was killed
		}
		if err != nil {
			s.close()
			return nil, fmt.Errorf("make a file for what has to wait: %w", err)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.fds[0], &fs); err != nil {
		s.close()
		return nil, fmt.Errorf("look for room for what has to wait: %w", err)
	}
	// The other half is for segments, of which most may be written before pages leave their place here.
	s.room = int64(fs.Bavail) * fs.Bsize / 2
	return s, nil
}

// spillPlace returns the file, by its number, and the offset in it for a place in the spill.
func spillPlace(at int64) (file int, offset int64) {
	n := at / format.MaxFrame
	return int(n % spillFiles), n/spillFiles*format.MaxFrame + at%format.MaxFrame
}

// fill writes to a place.
func (s *spill) fill(b []byte, at int64) error {
	file, offset := spillPlace(at)
	if _, err := s.files[file].WriteAt(b, offset); err != nil {
		return fmt.Errorf("keep pages: %w", err)
	}
	return nil
}

// ReadAt reads what is within one place.
func (s *spill) ReadAt(b []byte, at int64) (int, error) {
	file, offset := spillPlace(at)
	return s.files[file].ReadAt(b, offset)
}

// putPages keeps pages; false where there is no room for them.
func (s *spill) putPages(b []byte) (at int64, ok bool, err error) {
	n := int64(len(b))
	if at, err = s.reserve(n); err != nil {
		return 0, false, nil
	}
	if err := s.fill(b, at); err != nil {
		s.drop(at, n)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return 0, false, nil
		}
		return 0, false, err
	}
	return at, true, nil
}

// reserve returns a place for n bytes of pages. Where there is no room for them, the error is ENOSPC.
func (s *spill) reserve(n int64) (at int64, err error) {
	if s.waiting.Add(n) > s.room {
		s.waiting.Add(-n)
		return 0, fmt.Errorf("keep pages: half of what is free on the disk is in use: %w", syscall.ENOSPC)
	}
	// Each piece has a place of a frame's length: only what is aligned goes past the page cache.
	return s.end.Add(format.MaxFrame) - format.MaxFrame, nil
}

// drop gives the room of pages back.
func (s *spill) drop(at, n int64) {
	s.waiting.Add(-n)
	s.forget(at, n)
}

// takePages reads pages into b and gives their room back.
func (s *spill) takePages(b []byte, at int64) error {
	if _, err := s.ReadAt(b, at); err != nil {
		return fmt.Errorf("read kept pages: %w", err)
	}
	s.drop(at, int64(len(b)))
	return nil
}

// forget gives room back, where the file system can do that before the file is closed. What the kernel has not written to the
// disk yet it need not write any more.
func (s *spill) forget(at, n int64) {
	file, offset := spillPlace(at)
	_ = unix.Fallocate(s.fds[file], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, n)
}

// putFrame keeps the stored bytes of a frame. What stands behind them in memory may be written with them.
func (s *spill) putFrame(f format.Frame, stored []byte) (spilledFrame, error) {
	at := s.end.Add(format.MaxFrame) - format.MaxFrame
	return spilledFrame{frame: f, at: at}, s.fill(stored[:min(format.AlignUp(len(stored)), cap(stored))], at)
}

// takeFrame reads the stored bytes of a frame into buf, of [format.MaxFrame] bytes and from [format.LendBuffer], and gives their room back.
func (s *spill) takeFrame(f spilledFrame, buf []byte) ([]byte, error) {
	// As far as it was written: less only at the end of a file that does not go past the page cache.
	n, err := s.ReadAt(buf[:format.AlignUp(f.frame.Stored)], f.at)
	if int64(n) < f.frame.Stored {
		return nil, fmt.Errorf("read a kept frame: %w", err)
	}
	s.forget(f.at, format.AlignUp(f.frame.Stored))
	return buf[:f.frame.Stored], nil
}

func (s *spill) close() {
	for _, f := range s.files {
		f.Close()
	}
}
