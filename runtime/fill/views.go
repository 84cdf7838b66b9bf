package fill

import (
	"cmp"
	"slices"
)

// view is a range of the process's memory as it was when it was dumped, and where it is now.
type view struct {
	start, end uint64 // as it was
	now        uint64 // where start is
}

// views are what there still is of the memory that was dumped: by ascending start, without overlap, neither as it was nor now.
// What no view shows is gone, or was never there: it is zeros.
type views []view

// everything is memory that is where it was.
func everything() views { return views{{start: 0, end: maxAddress, now: 0}} }

// maxAddress is above every address of a process.
const maxAddress = 1 << 57

// at returns where addr was when it was dumped.
func (v views) at(addr uint64) (uint64, bool) {
	for _, w := range v {
		if addr >= w.now && addr-w.now < w.end-w.start {
			return w.start + addr - w.now, true
		}
	}
	return 0, false
}

// find returns where the memory is now that was at addr, and how much of it follows there in one piece. For memory that is gone,
// ok is false, and length is that of what is gone in one piece.
func (v views) find(addr uint64) (now, length uint64, ok bool) {
	i, found := slices.BinarySearchFunc(v, addr, func(w view, addr uint64) int { return cmp.Compare(w.start, addr) })
	if !found {
		i-- // the view before it may reach over it
	}
	if i >= 0 && addr < v[i].end {
		return v[i].now + addr - v[i].start, v[i].end - addr, true
	}
	if i+1 < len(v) {
		return 0, v[i+1].start - addr, false
	}
	return 0, maxAddress - min(addr, maxAddress), false
}

// cut takes away what is now from start to end, and gives it.
func (v views) cut(start, end uint64) (rest, taken views) {
	return v.split(start, end, func(w view) uint64 { return w.now })
}

// without takes away what was from start to end when it was dumped.
func (v views) without(start, end uint64) views {
	rest, _ := v.split(start, end, func(w view) uint64 { return w.start })
	return rest
}

// split takes away what is from start to end by the addresses that base gives.
func (v views) split(start, end uint64, base func(view) uint64) (rest, taken views) {
	if start >= end {
		return v, nil
	}
	for _, w := range v {
		length := w.end - w.start
		from, to := base(w), base(w)+length
		if to <= start || from >= end {
			rest = append(rest, w)
			continue
		}
		head, tail := uint64(0), length
		if start > from {
			head = start - from
			rest = append(rest, view{w.start, w.start + head, w.now})
		}
		if end < to {
			tail = end - from
		}
		taken = append(taken, view{w.start + head, w.start + tail, w.now + head})
		if end < to {
			rest = append(rest, view{w.start + tail, w.end, w.now + tail})
		}
	}
	return rest, taken
}

// move notes that what was from start to end is at to now, and nothing else is there.
func (v views) move(start, end, to uint64) views {
	rest, moved := v.cut(start, end)
	rest, _ = rest.cut(to, to+end-start)
	for _, w := range moved {
		w.now = w.now - start + to
		rest = append(rest, w)
	}
	slices.SortFunc(rest, func(a, b view) int { return cmp.Compare(a.start, b.start) })
	return rest
}
