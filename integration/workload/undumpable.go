package main

import (
	"flag"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// undumpable holds what CRIU refuses to dump.
type undumpable struct {
	what string
	file *os.File
}

func startUndumpable(flags *flag.FlagSet, args []string) (workload, error) {
	what := flags.String("what", "uring", "uring: an io_uring; ghost: a deleted file of --size")
	size := flags.Int64("size", 80, "of the deleted file, in MiB")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch *what {
	case "uring":
		// struct io_uring_params, see io_uring_setup(2); the ring is empty and not used.
		var params [120]byte
		fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
		if errno != 0 {
			return nil, fmt.Errorf("make an io_uring: %w", errno)
		}
		_ = fd // stays open until the end
	case "ghost":
		f, err := os.Create("/srv/ghost")
		if err != nil {
			return nil, err
		}
		if _, err := f.WriteAt(make([]byte, *size<<20), 0); err != nil {
			return nil, err
		}
		return undumpable{*what, f}, os.Remove(f.Name())
	default:
		return nil, fmt.Errorf("hold %q: neither uring nor ghost", *what)
	}
	return undumpable{what: *what}, nil
}

func (u undumpable) Check() (map[string]any, error) { return map[string]any{"holds": u.what}, nil }
