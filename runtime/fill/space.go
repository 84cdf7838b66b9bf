package fill

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// space is the memory of one process that is being filled.
type space struct {
	id     int
	pid    int // in the images; that of the parent for a child that was forked meanwhile
	forked bool
	layout *Layout

	// Who holds mem for writing reads what the kernel says, upon which the process goes on to change its memory. Who holds it
	// for reading may fill what the views show: nothing they show is being given away meanwhile.
	mem    sync.RWMutex
	uffd   int   // valid until closed
	closed bool  // guarded by mem
	views  views // guarded by mem

	// What follows is guarded by the filler's mu.
	states  []byte           // of the pieces
	left    int              // pieces that are not done
	cursor  int              // where the rest goes on
	without int              // what the filler's arrived was when no piece was idle and there; -1: it was not looked
	waiting map[int][]uint64 // addresses that a process waits for while their piece is being filled
}

// States of a piece.
const (
	idle = byte(iota)
	busy
	done
)

func newSpace(id, pid, uffd int, layout *Layout) *space {
	return &space{
		id: id, pid: pid, uffd: uffd, layout: layout, views: everything(),
		states: make([]byte, len(layout.Pieces)), left: len(layout.Pieces), without: -1, waiting: make(map[int][]uint64),
	}
}

// child makes the space of a process that was forked off. s.mem is held for writing and the filler's mu is.
func (s *space) child(id, uffd int) *space {
	c := newSpace(id, s.pid, uffd, s.layout)
	c.forked = true
	c.views = append(c.views[:0], s.views...)
	for _, r := range s.layout.Regions {
		if r.Unshared {
			c.views = c.views.without(r.Start, r.End)
		}
	}
	c.cursor = s.cursor
	for i, state := range s.states {
		if state == done {
			c.states[i] = done
			c.left--
		}
	}
	return c
}

// listen reads what the kernel says about the process, until it says nothing more. s.mem is held for writing. heard gets
// faults, forked the descriptors of children.
func (s *space) listen(heard func(addr uint64), forked func(uffd int) error) error {
	var buf [messagesAtATime * messageSize]byte
	for !s.closed {
		n, err := unix.Read(s.uffd, buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("listen to process %d: %w", s.pid, err)
		}
		for at := 0; at < n; at += messageSize {
			e, err := parseEvent(buf[at:min(at+messageSize, n)])
			if err != nil {
				return err
			}
			if err := s.hear(e, heard, forked); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *space) hear(e event, heard func(addr uint64), forked func(uffd int) error) error {
	switch e.kind {
	case eventPageFault:
		heard(e.addr)
	case eventFork:
		return forked(e.child)
	case eventRemap:
		s.views = s.views.move(e.addr, e.end, e.to)
		wake(s.uffd, e.addr, e.end) // a process that waits there shall look again
	case eventRemove, eventUnmap:
		s.views, _ = s.views.cut(e.addr, e.end)
		wake(s.uffd, e.addr, e.end)
	}
	return nil
}

// shows reports whether anything of a piece is still in the process. s.mem is held for reading.
func (s *space) shows(p Piece) bool {
	for _, e := range p {
		for addr := e.Addr; addr < e.Addr+e.Length; {
			_, n, ok := s.views.find(addr)
			if ok {
				return true
			}
			addr += n
		}
	}
	return false
}

// gone reports whether the process has ended, or has another program now.
func (s *space) gone(pageSize uint64) bool {
	s.mem.RLock()
	defer s.mem.RUnlock()
	return !s.closed && gone(s.uffd, pageSize)
}
