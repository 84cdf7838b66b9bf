package image

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/cryo-project/cryo/image/index"
)

// spill is a file without a name that keeps encoded frames until it is known which segment they belong to.
type spill struct {
	f   *os.File
	end atomic.Int64
}

// spilledFrame is a frame that lies in the spill.
type spilledFrame struct {
	frame index.Frame
	at    int64
}

func newSpill(dir string) (*spill, error) {
	f, err := os.CreateTemp(dir, "spill-")
	if err != nil {
		return nil, fmt.Errorf("make a file for frames: %w", err)
	}
	// Nobody has to clear up after a process that was killed.
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("make a file for frames: %w", err)
	}
	return &spill{f: f}, nil
}

func (s *spill) put(f index.Frame, stored []byte) (spilledFrame, error) {
	n := int64(len(stored))
	at := s.end.Add(n) - n
	if _, err := s.f.WriteAt(stored, at); err != nil {
		return spilledFrame{}, fmt.Errorf("keep a frame: %w", err)
	}
	return spilledFrame{frame: f, at: at}, nil
}

// get reads the stored bytes of a frame into buf, of [index.MaxFrame] bytes.
func (s *spill) get(f spilledFrame, buf []byte) ([]byte, error) {
	stored := buf[:f.frame.Stored]
	if _, err := s.f.ReadAt(stored, f.at); err != nil {
		return nil, fmt.Errorf("read a kept frame: %w", err)
	}
	return stored, nil
}

func (s *spill) close() { s.f.Close() }
