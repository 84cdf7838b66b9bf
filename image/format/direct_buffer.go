package format

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DirectAlign is what the place in memory, the offset and the length of what goes past the page cache must be multiples of, in bytes: the
// largest sector of common disks.
const DirectAlign = 4 << 10

// DirectPiece is how much is read or written at once, in bytes.
const DirectPiece = 1 << 20

// least is what is worth going past the page cache, in bytes.
const least = 64 << 10

// AllocDirect returns n bytes of memory that begin at a multiple of [DirectAlign].
func AllocDirect(n int) []byte {
	b := make([]byte, n+DirectAlign)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (DirectAlign - 1)
	return b[skip : skip+n : skip+n]
}

// AlignUp is n rounded up to a multiple of [DirectAlign].
func AlignUp[N int | int64](n N) N { return (n + DirectAlign - 1) &^ (DirectAlign - 1) }

func down[N int | int64](n N) N { return n &^ (DirectAlign - 1) }

// aligned reports whether b begins at a multiple of Align.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(DirectAlign-1) == 0
}

// Of the memory that is lent.
const (
	hugePage = 2 << 20
	room     = DirectPiece + 2*DirectAlign // of a buffer: for a piece that begins anywhere
	region   = 4 * hugePage                // what is taken from the kernel at a time
)

// lent is memory for pieces, in huge pages: to a disk a buffer in small ones is 256 places, which is several requests, and each place is
// looked up by every host below. What has come back is lent again, and never given to the kernel.
var lent struct {
	sync.Mutex
	free [][]byte // guarded by the mutex; the last was used last
}

// LendBuffer returns a buffer of [DirectPiece] bytes that begins at a multiple of [DirectAlign]. The buffer is outside of Go's heap: the caller
// passes it to [ReturnBuffer] when it does not need it any more.
func LendBuffer() []byte {
	lent.Lock()
	defer lent.Unlock()
	if len(lent.free) == 0 {
		lent.free = carve()
	}
	last := len(lent.free) - 1
	b := lent.free[last]
	lent.free = lent.free[:last]
	return b[:DirectPiece]
}

// ReturnBuffer takes back what [LendBuffer] gave.
func ReturnBuffer(b []byte) {
	lent.Lock()
	lent.free = append(lent.free, b[:DirectPiece])
	lent.Unlock()
}

// carve returns new buffers, from small pages where there are no others.
func carve() (all [][]byte) {
	memory, err := unix.Mmap(-1, 0, region+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return [][]byte{AllocDirect(room)}
	}
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(memory)))) & (hugePage - 1)
	memory = memory[skip : skip+region] // the rest is never touched
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
	for ; len(memory) >= room; memory = memory[room:] {
		all = append(all, memory[:DirectPiece:room])
	}
	return all
}
