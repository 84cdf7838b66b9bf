package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// The layout of the page, in the byte order of the machine: struct page of contrib/cuda/cryo_interrupt.cuh.
const (
	magic    = "CRYOINTR"
	version  = 1
	pageSize = 4096

	offsetVersion = 8  // uint32
	offsetFlag    = 16 // uint32: 1 is raised
	offsetLease   = 20 // uint32: milliseconds
)

// memoryDevice is the device number of the kernel's own tmpfs, on which each memfd is and nothing that has a name.
var memoryDevice = sync.OnceValues(func() (uint64, error) {
	fd, err := unix.MemfdCreate("cryo", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("create memory: %w", err)
	}
	defer unix.Close(fd)
	return deviceOf(fd)
})

// deviceOf is the device number of an open file. It asks no file system: that of a container may not answer.
func deviceOf(fd int) (uint64, error) {
	var stat unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &stat)
	return unix.Mkdev(stat.Dev_major, stat.Dev_minor), err
}

// errForeign says that a mapping is no longer what /proc/PID/maps said.
var errForeign = errors.New("not memory")

// memory opens the memory behind a mapping. dir is the process's directory in /proc.
func memory(dir int, m mapping) (int, error) {
	own, err := memoryDevice()
	if err != nil {
		return -1, err
	}
	found, err := unix.Openat(dir, m.file(), unix.O_PATH|unix.O_CLOEXEC, 0) // finds the file without opening it
	if err != nil {
		return -1, err
	}
	defer unix.Close(found)
	if on, err := deviceOf(found); err != nil {
		return -1, err
	} else if on != own {
		return -1, errForeign
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(found), unix.O_RDWR|unix.O_CLOEXEC, 0)
}

// set raises the flag of the page for a lease, or lowers it if that is 0. The memory is mapped rather than written: a write
// would wait for the memory's lock, which the process can hold for as long as it likes.
func set(pid, fd int, lease time.Duration) (err error) {
	page, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map memory: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(page)) }()
	// The process may make the memory shorter at any time; then there is no page to look at.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch reason := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // see debug.SetPanicOnFault
			err = pageError(pid, "it is shorter than a page")
		default:
			panic(reason)
		}
	}()
	if !bytes.Equal(page[:len(magic)], []byte(magic)) {
		return pageError(pid, "its magic is wrong")
	}
	if v := binary.NativeEndian.Uint32(page[offsetVersion:]); v != version {
		return failure.New(errdefs.ErrNotImplemented, "compile the program with the cryo_interrupt.cuh of this version of cryo",
			"read the interrupt page of process %d: its version is %d, and this cryo knows %d", pid, v, version)
	}
	if lease <= 0 {
		atomic.StoreUint32(word(page, offsetFlag), 0)
		return nil
	}
	atomic.StoreUint32(word(page, offsetLease), milliseconds(lease))
	atomic.StoreUint32(word(page, offsetFlag), 1)
	return nil
}

// word is an aligned word of the page.
func word(page []byte, offset int) *uint32 { return (*uint32)(unsafe.Pointer(&page[offset])) }

// milliseconds of a lease, at least one.
func milliseconds(d time.Duration) uint32 {
	const most = 1<<32 - 1
	return uint32(min(max(d.Milliseconds(), 1), most))
}

// isGone reports whether an error of /proc means that the process, or the mapping, is not there any more.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// pageError returns the error that memory with the page's name does not have its contents.
func pageError(pid int, reason string) error {
	return failure.New(errdefs.ErrDataLoss, "a program that uses cryo_interrupt.cuh has overwritten its page, or has made memory of that name itself",
		"read the interrupt page of process %d: %s", pid, reason)
}
