package format

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noCachestat is set where the kernel, before Linux 6.5, has no cachestat(2).
var noCachestat atomic.Bool

// Cached reports whether n bytes from off on are in the page cache, as far as one may know. A read that does not wait (RWF_NOWAIT) would tell
// as well, but has the kernel begin to read ahead.
func (f *DirectFile) Cached(off, n int64) bool {
	cached, total, err := CachedPages(f.f, off, n)
	return err == nil && cached == total // an error: it is open for writing only
}

// CachedPages counts the pages that n bytes of a file from off on lie in, n being 1 or more, and those of them that are in the page cache.
func CachedPages(f *os.File, off, n int64) (cached, total uint64, err error) {
	if !noCachestat.Load() {
		var stat unix.Cachestat_t
		err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &stat, 0)
		if !errors.Is(err, unix.ENOSYS) {
			pageSize := int64(unix.Getpagesize())
			return stat.Cache, uint64((off+n-1)/pageSize - off/pageSize + 1), os.NewSyscallError("cachestat", err)
		}
		noCachestat.Store(true)
	}
	return inCore(f, off, n)
}

// inCore is CachedPages by a mapping (mincore(2)).
func inCore(f *os.File, off, n int64) (cached, total uint64, err error) {
	pageSize := int64(unix.Getpagesize())
	from := off / pageSize * pageSize
	length := uintptr(off + n - from)
	m, err := unix.MmapPtr(int(f.Fd()), from, nil, length, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, os.NewSyscallError("mmap", err)
	}
	defer unix.MunmapPtr(m, length)
	pages := make([]byte, (int64(length)+pageSize-1)/pageSize)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(m), length, uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		return 0, 0, os.NewSyscallError("mincore", errno)
	}
	for _, p := range pages {
		cached += uint64(p & 1) // the other bits mean nothing
	}
	return cached, uint64(len(pages)), nil
}
