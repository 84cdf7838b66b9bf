package image

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/index"
)

// spill is a file without a name for what has to wait: pages that come faster than they can be hashed, and frames of which it
// is not known yet to which segment they belong.
type spill struct {
	f       *os.File
	file    *direct.File // f, past the page cache: what is read back at once would only push others out of it
	end     atomic.Int64
	waiting atomic.Int64 // bytes of pages that are there
	room    int64        // most of them, bytes
}

// spilledFrame is a frame that lies in the spill.
type spilledFrame struct {
	frame index.Frame
	at    int64
}

func newSpill(dir string) (*spill, error) {
	f, err := os.CreateTemp(dir, "spill-")
	if err != nil {
		return nil, fmt.Errorf("make a file for what has to wait: %w", err)
	}
	// Nobody has to clear up after a process that was killed.
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("make a file for what has to wait: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		f.Close()
		return nil, fmt.Errorf("look for room for what has to wait: %w", err)
	}
	// The other half is for segments, of which most may be written before pages leave their place here.
	return &spill{f: f, file: direct.New(f), room: int64(fs.Bavail) * fs.Bsize / 2}, nil
}

// putPages keeps pages; false where there is no room for them.
func (s *spill) putPages(b []byte) (at int64, ok bool, err error) {
	n := int64(len(b))
	if s.waiting.Add(n) > s.room {
		s.waiting.Add(-n)
		return 0, false, nil
	}
	// Each piece has a place of a frame's length: only what is aligned goes past the page cache.
	at = s.end.Add(index.MaxFrame) - index.MaxFrame
	if _, err := s.file.WriteAt(b, at); err != nil {
		s.waiting.Add(-n)
		s.forget(at, n)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return 0, false, nil
		}
		return 0, false, fmt.Errorf("keep pages: %w", err)
	}
	return at, true, nil
}

// takePages reads pages into b and gives their room back.
func (s *spill) takePages(b []byte, at int64) error {
	if _, err := s.file.ReadAt(b, at); err != nil {
		return fmt.Errorf("read kept pages: %w", err)
	}
	s.waiting.Add(-int64(len(b)))
	s.forget(at, int64(len(b)))
	return nil
}

// forget gives room back, where the file system can do that before the file is closed. What the kernel has not written to the
// disk yet it need not write any more.
func (s *spill) forget(at, n int64) {
	_ = unix.Fallocate(int(s.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
}

// putFrame keeps the stored bytes of a frame. What stands behind them in memory may be written with them.
func (s *spill) putFrame(f index.Frame, stored []byte) (spilledFrame, error) {
	at := s.end.Add(index.MaxFrame) - index.MaxFrame
	if _, err := s.file.WriteAt(stored[:min(direct.Up(len(stored)), cap(stored))], at); err != nil {
		return spilledFrame{}, fmt.Errorf("keep a frame: %w", err)
	}
	return spilledFrame{frame: f, at: at}, nil
}

// takeFrame reads the stored bytes of a frame into buf, of [index.MaxFrame] bytes and from [direct.Alloc], and gives their room back.
func (s *spill) takeFrame(f spilledFrame, buf []byte) ([]byte, error) {
	// As far as it was written: less only at the end of a file that does not go past the page cache.
	n, err := s.file.ReadAt(buf[:direct.Up(f.frame.Stored)], f.at)
	if int64(n) < f.frame.Stored {
		return nil, fmt.Errorf("read a kept frame: %w", err)
	}
	s.forget(f.at, direct.Up(f.frame.Stored))
	return buf[:f.frame.Stored], nil
}

func (s *spill) close() { s.file.Close() }
