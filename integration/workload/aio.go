package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sizes and offsets, in bytes, of a request to the kernel for asynchronous I/O. Databases make such requests by libaio. Source: io_submit(2), linux/aio_abi.h.
const (
	aioEvents    = 16 // the most events in the ring
	aioContext   = 0  // this and the next four are offsets in the memory of holdAIO
	aioRequest   = 64
	aioEvent     = 128
	aioList      = 192
	aioBytes     = 256
	aioBytesRead = 16
)

// holdAIO makes a context of asynchronous I/O and requests a read. Each use takes the event of the last read from the ring, compares the bytes, and requests another read.
func holdAIO() (checked, error) {
	f, err := os.Create("/srv/aio")
	if err != nil {
		return nil, err
	}
	want := []byte("asynchronous I/O")
	if _, err := f.Write(want); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	at := func(offset int) uintptr { return uintptr(unsafe.Pointer(&memory[offset])) }
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, aioEvents, at(aioContext), 0); errno != 0 {
		return nil, os.NewSyscallError("io_setup", errno)
	}
	context := uintptr(binary.NativeEndian.Uint64(memory[aioContext:]))
	submit := func() error {
		request := memory[aioRequest : aioRequest+64]
		clear(request)
		binary.NativeEndian.PutUint32(request[20:], uint32(f.Fd())) // the operation, at 16, is 0: IOCB_CMD_PREAD
		binary.NativeEndian.PutUint64(request[24:], uint64(at(aioBytes)))
		binary.NativeEndian.PutUint64(request[32:], aioBytesRead)
		binary.NativeEndian.PutUint64(memory[aioList:], uint64(at(aioRequest)))
		clear(memory[aioBytes : aioBytes+aioBytesRead])
		_, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, context, 1, at(aioList))
		if errno != 0 {
			return os.NewSyscallError("io_submit", errno)
		}
		return nil
	}
	return func() error {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, context, 1, 1, at(aioEvent), 0, 0)
		if errno != 0 {
			return os.NewSyscallError("io_getevents", errno)
		}
		read := int64(binary.NativeEndian.Uint64(memory[aioEvent+16:]))
		if got := memory[aioBytes : aioBytes+aioBytesRead]; n != 1 || read != aioBytesRead || string(got) != string(want) {
			return fmt.Errorf("%d events, %d bytes, %q; want %q", n, read, got, want)
		}
		return submit()
	}, submit()
}
