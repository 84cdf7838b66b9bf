package direct

import (
	"errors"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noCachestat is set where the kernel, before Linux 6.5, has no cachestat(2).
var noCachestat atomic.Bool

// Cached says whether n bytes from off on are in the page cache, as far as one may know. A read that does not wait (RWF_NOWAIT) would tell
// as well, but has the kernel begin to read ahead.
func (f *File) Cached(off, n int64) bool {
	if !noCachestat.Load() {
		var stat unix.Cachestat_t
		err := unix.Cachestat(uint(f.f.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &stat, 0)
		if !errors.Is(err, unix.ENOSYS) {
			pageSize := int64(unix.Getpagesize())
			return err == nil && stat.Cache == uint64((off+n-1)/pageSize-off/pageSize+1)
		}
		noCachestat.Store(true)
	}
	return f.inCore(off, n)
}

// inCore is Cached by a mapping (mincore(2)).
func (f *File) inCore(off, n int64) bool {
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
