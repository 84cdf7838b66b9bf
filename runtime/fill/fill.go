package fill

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// How long memory that the kernel does not have is waited for, where it ends no process to get some.
const (
	memoryTime  = 30 * time.Second
	memoryPause = 10 * time.Millisecond
	// misses are how often in a row a page may have no mapping before it is taken for having none. Once may be the moment
	// before the kernel says so.
	misses = 3
)

// fill puts data, which are the bytes of a piece, where the process has the piece now; the page at first, an address as it was
// when it was dumped, before the others unless first is 0. It gives unix.ESRCH where the process is gone.
func (f *Filler) fill(ctx context.Context, s *space, p Piece, data []byte, first uint64) error {
	at := data
	for _, e := range p {
		if first >= e.Addr && first-e.Addr < e.Length {
			page := first &^ (f.PageSize - 1)
			if err := f.place(ctx, s, page, at[page-e.Addr:][:f.PageSize]); err != nil {
				return err
			}
			break
		}
		at = at[e.Length:]
	}
	for _, e := range p {
		if err := f.place(ctx, s, e.Addr, data[:e.Length]); err != nil {
			return err
		}
		data = data[e.Length:]
	}
	return nil
}

// place puts data where the memory is now that was at addr.
func (f *Filler) place(ctx context.Context, s *space, addr uint64, data []byte) error {
	length := len(data) // of the next attempt: at most one mapping
	missed := 0
	var short time.Time // of memory, since when
	for len(data) > 0 {
		n, errno := s.copy(addr, data[:min(length, len(data))])
		addr, data = addr+uint64(n), data[n:]
		if n > 0 {
			missed, short = 0, time.Time{}
		}
		switch errno {
		case 0:
			length = max(length, len(data))
		case unix.EEXIST: // it is there already, from before a fork or from an attempt that was cut short
			addr, data = addr+f.PageSize, data[min(f.PageSize, uint64(len(data))):]
		case unix.EAGAIN: // the kernel has something to say first
			if err := f.pause(ctx, 0); err != nil {
				return err
			}
		case unix.ENOENT: // it is not of one mapping
			if length > int(f.PageSize) {
				length = max(length/2&^int(f.PageSize-1), int(f.PageSize))
				continue
			}
			if missed++; missed < misses {
				continue
			}
			if !s.forked {
				return fmt.Errorf("fill process %d: page %#x is not there to be filled", s.pid, addr)
			}
			missed = 0
			addr, data = addr+f.PageSize, data[f.PageSize:]
		case unix.ENOMEM:
			if short.IsZero() {
				short = time.Now()
			}
			if time.Since(short) > memoryTime {
				return fmt.Errorf("fill process %d: page %#x: %w", s.pid, addr, errno)
			}
			if err := f.pause(ctx, memoryPause); err != nil {
				return err
			}
		case unix.ESRCH:
			return errno
		default:
			return fmt.Errorf("fill process %d: page %#x: %w", s.pid, addr, errno)
		}
	}
	return nil
}

// copy puts data where the memory is now that was at addr, as far as it is there in one piece. What is gone counts as done.
func (s *space) copy(addr uint64, data []byte) (int, unix.Errno) {
	s.mem.RLock()
	defer s.mem.RUnlock()
	if s.closed {
		return 0, unix.ESRCH
	}
	now, length, ok := s.views.find(addr)
	data = data[:min(uint64(len(data)), length)]
	if !ok {
		return len(data), 0
	}
	return copyTo(s.uffd, now, data)
}

// pause lets others go on.
func (f *Filler) pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		d = 50 * time.Microsecond
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-f.ended:
		return context.Cause(ctx) // none where all is there
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
