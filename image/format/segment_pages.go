package format

import (
	"bytes"
	"crypto/sha256"

	"github.com/cespare/xxhash/v2"
)

// zeroPage is compared with: the runtime's comparison is faster than any loop in Go, and the page stays in the cache.
var zeroPage [64 << 10]byte

// IsZeroPage reports whether a page, of at most 64 KiB, holds zeros only.
func IsZeroPage(page []byte) bool { return bytes.Equal(page, zeroPage[:len(page)]) }

// KeepPages adds the pages of a run, which stand behind those that the frame has already, to the frame: it moves them over those of zeros.
// The frame's raw length says then where the next belong.
func KeepPages(f *Frame, r Run, pageSize int64, pages []byte) {
	n := int64(0) // bytes of pages that are kept
	for i := range r.Count {
		page := pages[i*pageSize : (i+1)*pageSize]
		if IsZeroPage(page) {
			continue
		}
		if n < i*pageSize {
			copy(pages[n:], page)
		}
		n += pageSize
		f.Runs = addPage(f.Runs, Run{File: r.File, First: r.First + i, Count: 1, Addr: r.Addr + uint64(i*pageSize)}, pageSize)
	}
	f.Raw += n
}

// SumFrame completes a frame, of whose bytes raw are all, but for segment, offset, stored length and codec.
func SumFrame(f *Frame, raw []byte) { f.Digest, f.Check = sha256.Sum256(raw), xxhash.Sum64(raw) }

func addPage(runs []Run, r Run, pageSize int64) []Run {
	if len(runs) > 0 {
		last := &runs[len(runs)-1]
		if last.First+last.Count == r.First && last.Addr+uint64(last.Count*pageSize) == r.Addr {
			last.Count++
			return runs
		}
	}
	return append(runs, r)
}
