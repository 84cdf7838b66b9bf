package fill

import (
	"bytes"
	"time"
)

// next waits for something to do: what a process waits for, or a piece of the rest. There is nothing any more if s is nil.
func (f *Filler) next(rest bool) (s *space, addr uint64, piece int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.stopped() {
		if len(f.faults) > 0 {
			f.heard = time.Now()
			first := f.faults[0]
			f.faults = f.faults[1:]
			return first.space, first.addr, -1
		}
		if rest && f.calm {
			for _, s := range f.spaces {
				if s.without == f.arrived {
					continue // nothing has come since
				}
				if i := s.pick(f.Next); i >= 0 {
					return s, 0, i
				}
				s.without = f.arrived
			}
		}
		f.change.Wait()
	}
	return nil, 0, 0
}

// pick returns a piece that no worker has begun with and that is there, and begins with it; -1: there is none. The filler's mu is held.
func (s *space) pick(next func(pid, from int) int) int {
	i := s.seek(s.cursor, len(s.states), next)
	if i < 0 {
		i = s.seek(0, s.cursor, next)
	}
	if i < 0 {
		return -1
	}
	s.states[i], s.cursor = busy, i
	return i
}

// seek looks for one from a piece to before another.
func (s *space) seek(from, to int, next func(pid, from int) int) int {
	for from < to {
		i := bytes.IndexByte(s.states[from:to], idle)
		if i < 0 {
			return -1
		}
		from += i
		if next == nil {
			return from
		}
		there := next(s.pid, from)
		if there < 0 || there == from {
			return there
		}
		from = there
	}
	return -1
}
