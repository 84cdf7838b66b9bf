package segment

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/cryo-project/cryo/image/index"
)

// zeroPage is compared with: the runtime's comparison is faster than any loop in Go, and the page stays in the cache.
var zeroPage [64 << 10]byte

// IsZero says whether a page, of at most 64 KiB, holds zeros only.
func IsZero(page []byte) bool { return bytes.Equal(page, zeroPage[:len(page)]) }

// Load reads a piece's pages from its pages file into buf, of [index.MaxFrame] bytes, and leaves out those of zeros, as
// [Compact] does.
func Load(p Piece, file io.ReaderAt, pageSize int64, buf []byte) (index.Frame, []byte, error) {
	at := int64(0)
	for _, r := range p.Runs {
		n := r.Count * pageSize
		if _, err := file.ReadAt(buf[at:at+n], r.First*pageSize); err != nil {
			return index.Frame{}, nil, fmt.Errorf("read pages: %w", err)
		}
		at += n
	}
	f, kept := Compact(p, pageSize, buf[:at])
	return f, kept, nil
}

// Compact moves the pages of a piece, which fill buf in their order, over those of zeros. It gives the frame with everything
// but segment, offset, stored length and codec, and the bytes to store. No pages are left where all are zero.
func Compact(p Piece, pageSize int64, buf []byte) (index.Frame, []byte) {
	var f index.Frame
	from, n := int64(0), int64(0) // bytes of buf that were looked at and that are kept
	for _, r := range p.Runs {
		for i := int64(0); i < r.Count; i++ {
			page := buf[from : from+pageSize]
			from += pageSize
			if IsZero(page) {
				continue
			}
			if at := buf[n : n+pageSize]; &at[0] != &page[0] {
				copy(at, page)
			}
			n += pageSize
			f.Runs = addPage(f.Runs, index.Run{File: p.File, First: r.First + i, Count: 1, Addr: r.Addr + uint64(i*pageSize)}, pageSize)
		}
	}
	f.Raw = n
	f.Digest = sha256.Sum256(buf[:n])
	return f, buf[:n]
}

func addPage(runs []index.Run, r index.Run, pageSize int64) []index.Run {
	if len(runs) > 0 {
		last := &runs[len(runs)-1]
		if last.First+last.Count == r.First && last.Addr+uint64(last.Count*pageSize) == r.Addr {
			last.Count++
			return runs
		}
	}
	return append(runs, r)
}
