package direct

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Cached says whether n bytes from off on are in the page cache, as far as one may know (cachestat(2), mincore(2)). A read that does not
// wait (RWF_NOWAIT) would tell as well, but has the kernel begin to read ahead.
func (f *File) Cached(off, n int64) bool {
	if n < 1 {
		return true
	}
	pageSize := int64(unix.Getpagesize())
	var there unix.Cachestat_t
	if err := unix.Cachestat(uint(f.f.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &there, 0); err == nil {
		return there.Cache == uint64((off+n-1)/pageSize-off/pageSize+1)
	}
	return f.mapped(off, n) // before Linux 6.5
}

// mapped is Cached where it takes a mapping to know. All goroutines that ask wait for each other: to map and unmap is to have all of the
// address space for oneself.
func (f *File) mapped(off, n int64) bool {
	from := down(off)
	m, err := unix.MmapPtr(int(f.f.Fd()), from, nil, uintptr(off+n-from), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return false // it is open for writing only
	}
	defer unix.MunmapPtr(m, uintptr(off+n-from))
	pageSize := int64(unix.Getpagesize())
	pages := make([]byte, (off+n-from+pageSize-1)/pageSize)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(m), uintptr(off+n-from), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		return false
	}
	// The lowest bit of each says that the page is there.
	return !slices.ContainsFunc(pages, func(p byte) bool { return p&1 == 0 })
}
