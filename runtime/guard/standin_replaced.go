package guard

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// replacedTime is how long a program may take to be written that an upgrade puts in the place of another.
const replacedTime = 10 * time.Second

// AwaitProgram waits until the program at a path can be executed. An upgrade may be writing it, and the kernel does not execute what is open for writing (ETXTBSY): CRIU would fail when the
// container is frozen.
func AwaitProgram(ctx context.Context, program string) error {
	return await(ctx, program, replacedTime)
}

func await(ctx context.Context, program string, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; {
		written, err := openForWriting(program)
		if err != nil || !written {
			return err
		}
		if time.Now().After(deadline) {
			return failure.New(errdefs.ErrUnavailable, "wait until the upgrade of cryo has ended, or install it again", "%s is being written", program)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// openForWriting reports whether any process has a file open for writing: then the kernel gives no read lease of it. Source: fcntl(2), F_SETLEASE.
func openForWriting(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // which ends the lease
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if errors.Is(err, unix.EAGAIN) {
		return true, nil
	}
	return false, nil // of a file system without leases it is not known
}
