package direct

import (
	"sync"
	"unsafe"
)

// Align is what the place in memory, the offset and the length of what goes past the page cache must be multiples of, in bytes: the
// largest sector of common disks.
const Align = 4 << 10

// Piece is how much is read or written at once, in bytes.
const Piece = 1 << 20

// least is what is worth going past the page cache, in bytes.
const least = 64 << 10

// Alloc gives n bytes of memory that begin at a multiple of [Align].
func Alloc(n int) []byte {
	b := make([]byte, n+Align)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (Align - 1)
	return b[skip : skip+n : skip+n]
}

// Up is n rounded up to a multiple of [Align].
func Up[N int | int64](n N) N { return (n + Align - 1) &^ (Align - 1) }

func down[N int | int64](n N) N { return n &^ (Align - 1) }

// aligned says whether b begins at a multiple of Align.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(Align-1) == 0
}

// buffers have room for a piece that begins anywhere.
var buffers = sync.Pool{New: func() any {
	b := Alloc(Piece + 2*Align)
	return &b
}}
