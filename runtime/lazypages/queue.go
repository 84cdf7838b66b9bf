package lazypages

import (
	"bytes"
	"time"
)

// next waits for something to do: what somebody waits for, or a piece of the rest. There is nothing any more if s is nil.
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
				if i := s.pick(f.There); i >= 0 {
					return s, 0, i
				}
			}
		}
		f.change.Wait()
	}
	return nil, 0, 0
}

// pick gives a piece that nobody has begun with and that is there, and begins with it; -1: there is none. The filler's mu is held.
func (s *space) pick(there func(pid, piece int) bool) int {
	i := s.seek(s.cursor, len(s.states), there)
	if i < 0 {
		i = s.seek(0, s.cursor, there)
	}
	if i < 0 {
		return -1
	}
	s.states[i], s.cursor = busy, i
	return i
}

// seek looks for one from a piece to before another.
func (s *space) seek(from, to int, there func(pid, piece int) bool) int {
	for from < to {
		i := bytes.IndexByte(s.states[from:to], idle)
		if i < 0 {
			return -1
		}
		from += i
		if there == nil || there(s.pid, from) {
			return from
		}
		from++
	}
	return -1
}
