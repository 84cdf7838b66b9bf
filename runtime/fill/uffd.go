package fill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of ioctl_userfaultfd(2), from Linux, include/uapi/linux/userfaultfd.h.
const (
	ioctlAPI          = 0xc018aa3f
	ioctlWake         = 0x8010aa02
	ioctlCopy         = 0xc028aa03
	ioctlZeroPage     = 0xc020aa04
	ioctlWriteProtect = 0xc018aa06

	api             = 0xaa
	featuresEvents  = featureFork | featureRemap | featureRemove | featureUnmap
	featureFork     = 1 << 1
	featureRemap    = 1 << 2
	featureRemove   = 1 << 3
	featureUnmap    = 1 << 6
	eventPageFault  = 0x12
	eventFork       = 0x13
	eventRemap      = 0x14
	eventRemove     = 0x15
	eventUnmap      = 0x16
	messageSize     = 32
	messagesAtATime = 64
)

// Supported returns an error unless this kernel lets this process fill the memory of running processes.
func Supported() error {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return fmt.Errorf("this kernel has no userfaultfd for running processes: %w", errno)
	}
	defer unix.Close(int(fd))
	request := struct{ api, features, ioctls uint64 }{api: api, features: featuresEvents}
	if errno := ioctl(int(fd), ioctlAPI, unsafe.Pointer(&request)); errno != 0 {
		return fmt.Errorf("this kernel has no userfaultfd for running processes: %w", errno)
	}
	return nil
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		if errno != unix.EINTR {
			return errno
		}
	}
}

// copyTo puts data at addr, which must be one mapping, and wakes the process that waits for it. It gives how many bytes were put there; the
// error is about what comes behind those.
func copyTo(fd int, addr uint64, data []byte) (int, unix.Errno) {
	r := struct{ dst, src, length, mode, copied uint64 }{dst: addr, src: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data)))), length: uint64(len(data))}
	errno := ioctl(fd, ioctlCopy, unsafe.Pointer(&r))
	runtime.KeepAlive(data)
	if errno == 0 {
		return len(data), 0
	}
	if n := int64(r.copied); n > 0 && n <= int64(len(data)) {
		return int(n), errno
	}
	return 0, errno
}

// zero makes a page of zeros at addr and wakes the process that waits for it.
func zero(fd int, addr, pageSize uint64) unix.Errno {
	r := struct {
		start, length, mode uint64
		zeroed              int64
	}{start: addr, length: pageSize}
	return ioctl(fd, ioctlZeroPage, unsafe.Pointer(&r))
}

// wake has every process look again that waits for pages from start to end.
func wake(fd int, start, end uint64) {
	r := struct{ start, length uint64 }{start, end - start}
	_ = ioctl(fd, ioctlWake, unsafe.Pointer(&r)) // it fails for what no process can have
}

// gone reports whether the process has ended, or has another program now. It asks for something that changes nothing: there is
// memory neither to be protected nor to be unprotected where no process may have any.
func gone(fd int, pageSize uint64) bool {
	r := struct{ start, length, mode uint64 }{start: lowest, length: pageSize}
	return ioctl(fd, ioctlWriteProtect, unsafe.Pointer(&r)) == unix.ESRCH
}

// lowest is where programs begin at the earliest: vm.mmap_min_addr of most systems.
const lowest = 64 << 10

// event is one message of the kernel's about a process.
type event struct {
	kind  uint8
	addr  uint64 // of a fault, or where a range begins
	end   uint64 // of the range, after it
	to    uint64 // where it was moved to
	child int    // after a fork, its userfaultfd, which this process has from now on
}

// errMessage is for messages that the kernel does not send.
var errMessage = errors.New("a message of userfaultfd is not understood")

// parseEvent understands one message.
func parseEvent(b []byte) (event, error) {
	if len(b) != messageSize {
		return event{}, fmt.Errorf("%w: %d bytes", errMessage, len(b))
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
	e := event{kind: b[0]}
	switch e.kind {
	case eventPageFault:
		e.addr = word(2)
	case eventFork:
		e.child = int(int32(binary.NativeEndian.Uint32(b[8:])))
	case eventRemap:
		e.addr, e.to, e.end = word(1), word(2), word(1)+word(3)
	case eventRemove, eventUnmap:
		e.addr, e.end = word(1), word(2)
	default:
		return event{}, fmt.Errorf("%w: event %#x", errMessage, e.kind)
	}
	if e.end < e.addr && e.kind != eventPageFault && e.kind != eventFork {
		return event{}, fmt.Errorf("%w: a range from %#x to %#x", errMessage, e.addr, e.end)
	}
	return e, nil
}
