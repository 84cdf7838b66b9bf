package fill

import (
	"context"
	"slices"
	"sort"
)

// Source is the memory that was dumped. Its methods may be called by several goroutines at once.
type Source interface {
	// Layout returns what there is of a process, by its pid in the images.
	Layout(pid int) (Layout, error)
	// Reader returns what one worker reads with.
	Reader() (Reader, error)
}

// Reader reads memory, for one goroutine.
type Reader interface {
	// Read returns the bytes of a piece, one extent after the other; they are valid until the next call. It may wait, as long as
	// ctx allows. What it gives is put into the process: it must have been verified.
	Read(ctx context.Context, pid, piece int) ([]byte, error)
	Close()
}

// Layout is what CRIU has left out of the memory of a process. All else that can be filled is zeros.
type Layout struct {
	Pieces  []Piece // ascending, without overlap
	Regions []Region
}

// Piece is memory that is read at once, a few MiB at most: extents by ascending address, without overlap, aligned to pages.
type Piece []Extent

// Extent is a range of addresses.
type Extent struct{ Addr, Length uint64 }

// Region is a range of addresses about which the process has told the kernel something: madvise(2).
type Region struct {
	Start, End uint64
	// Unshared memory does not go to children, or does as zeros: MADV_DONTFORK, MADV_WIPEONFORK.
	Unshared bool
	// Huge memory is better off in huge pages: MADV_HUGEPAGE.
	Huge bool
}

// find returns the piece that has addr.
func (l *Layout) find(addr uint64) (int, bool) {
	behind := sort.Search(len(l.Pieces), func(i int) bool { return l.Pieces[i][0].Addr > addr }) // the first piece that begins behind addr
	if behind == 0 {
		return 0, false
	}
	return behind - 1, slices.ContainsFunc(l.Pieces[behind-1], func(e Extent) bool { return addr >= e.Addr && addr-e.Addr < e.Length })
}
