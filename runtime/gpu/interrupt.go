package gpu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// RaiseInterrupt asks the kernels of a process to return early and the process to launch none, for the time of a lease: at least a millisecond, at most 49 days, and longer than
// the deadline of the lock. pid is that of
// the caller's namespace. n is the number of flags raised, one for each page that the process has: 0 for a process that
// has none or is gone. An error, which can come with n above 0, says which pages could not be used: one of kind DataLoss for
// one that was overwritten, NotImplemented for one of another layout, ResourceExhausted where there are too many, or the system's.
func RaiseInterrupt(pid int, lease time.Duration) (n int, err error) {
	if n, err = eachMapping(pid, max(lease, time.Millisecond)); err != nil {
		return n, fmt.Errorf("raise the interrupt flag: %w", err)
	}
	return n, nil
}

// LowerInterrupt lets the process launch kernels again. It answers as Raise does, and lowers as well what is not raised.
func LowerInterrupt(pid int) (n int, err error) {
	if n, err = eachMapping(pid, 0); err != nil {
		return n, fmt.Errorf("lower the interrupt flag: %w", err)
	}
	return n, nil
}

// eachMapping sets the flags of all pages of a process. All is done by the process's directory, which never becomes another process's.
func eachMapping(pid int, lease time.Duration) (n int, err error) {
	dir, err := unix.Open(filepath.Join("/proc", strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if isGone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(dir)
	found, err := listMappings(dir)
	switch {
	case errors.Is(err, errTooMany):
		err = failure.New(errdefs.ErrResourceExhausted, "", "find the interrupt pages of process %d: there are more than %d", pid, maxPages)
	case isGone(err):
		err = nil
	case err != nil:
		err = fmt.Errorf("read the mappings of process %d: %w", pid, err)
	}
	errs := []error{err}
	for _, m := range found {
		fd, err := memory(dir, m)
		if isGone(err) || errors.Is(err, errForeign) {
			continue // unmapped, or another mapping by now
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("open %s of process %d: %w", m.file(), pid, err))
			continue
		}
		err = errors.Join(set(pid, fd, lease), unix.Close(fd))
		if err == nil {
			n++
		}
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// listMappings reads a process's mappings.
func listMappings(dir int) ([]mapping, error) {
	fd, err := unix.Openat(dir, "maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	maps := os.NewFile(uintptr(fd), "maps")
	defer maps.Close()
	return mappings(maps)
}
