package segment

import (
	"fmt"
	"hash/fnv"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/pages"
)

// Sizes of a segment's window, in bytes.
const (
	DefaultSize = 256 << 20
	MinSize     = index.MaxFrame
	MaxSize     = 8 << 30 // registries take blobs of 10 GB at least
)

// Piece is what becomes one frame: pages of one pages file whose addresses lie between two multiples of index.MaxFrame.
type Piece struct {
	File uint64 // ID of the pages file
	Runs []pages.Run
}

// Pages counts the pages of a piece.
func (p Piece) Pages() int64 {
	var n int64
	for _, r := range p.Runs {
		n += r.Count
	}
	return n
}

// window is one process's or object's memory between two multiples of the segment size.
type window struct {
	pagemap string
	number  uint64
	pages   int64
	pieces  []Piece
}

// Cut says which pieces make which segment, in order. size is the length of a window in bytes, a power of two from
// [MinSize] to [MaxSize]. maps must be in a fixed order.
//
// A window with at least a 16th of size dumped makes a segment. The others are pooled, in order: a pool ends before it
// would exceed size, and, once it holds a quarter of size, before a window whose name hashes to a multiple of four. So
// pools find the same ends again behind a window that grew.
func Cut(maps []*pages.Pagemap, pageSize, size int64) ([][]Piece, error) {
	if err := CheckSize(size); err != nil {
		return nil, err
	}
	var own, pooled [][]Piece
	var pool []Piece
	var poolPages int64
	for _, m := range maps {
		for _, w := range windows(m, pageSize, size) {
			if Alone(w.pages, pageSize, size) {
				own = append(own, w.pieces)
				continue
			}
			if full := poolPages + w.pages; full*pageSize > size || poolPages*pageSize >= size/4 && w.ends() {
				pooled = append(pooled, pool)
				pool, poolPages = nil, 0
			}
			pool = append(pool, w.pieces...)
			poolPages += w.pages
		}
	}
	if len(pool) > 0 {
		pooled = append(pooled, pool)
	}
	return append(own, pooled...), nil
}

// CheckSize says whether a window may be of size bytes.
func CheckSize(size int64) error {
	if size < MinSize || size > MaxSize || size&(size-1) != 0 {
		return fmt.Errorf("cut segments: size %d is not a power of two from %d to %d: %w",
			size, int64(MinSize), int64(MaxSize), errdefs.ErrInvalidArgument)
	}
	return nil
}

// Alone says whether a window of size bytes makes a segment when so many of its pages were dumped.
func Alone(pages, pageSize, size int64) bool { return pages*pageSize >= size/16 }

// ends says whether a pool that is large enough ends before the window.
func (w *window) ends() bool {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %x", w.pagemap, w.number)
	return h.Sum64()%4 == 0
}

// windows cuts a pagemap at multiples of size, and within at multiples of a frame.
func windows(m *pages.Pagemap, pageSize, size int64) []window {
	var ws []window
	piece := ^uint64(0) // address / MaxFrame of the last piece
	for _, r := range m.Runs {
		for r.Count > 0 {
			n := r.Addr / uint64(size)
			if len(ws) == 0 || ws[len(ws)-1].number != n {
				ws = append(ws, window{pagemap: m.Name, number: n})
			}
			w := &ws[len(ws)-1]
			if r.Addr/index.MaxFrame != piece {
				piece = r.Addr / index.MaxFrame
				w.pieces = append(w.pieces, Piece{File: m.Pages})
			}
			border := (piece + 1) * index.MaxFrame
			count := min(r.Count, int64(border-r.Addr)/pageSize)
			p := &w.pieces[len(w.pieces)-1]
			p.Runs = append(p.Runs, pages.Run{Addr: r.Addr, First: r.First, Count: count})
			w.pages += count
			r.Addr += uint64(count * pageSize)
			r.First += count
			r.Count -= count
		}
	}
	return ws
}
