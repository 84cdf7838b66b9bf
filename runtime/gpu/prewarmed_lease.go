package gpu

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// PrewarmedLease is memory that was borrowed. Until it is used, its lender has it too, and another may have it when it is closed.
type PrewarmedLease struct {
	info    Prewarmed
	process *process
	files   []*os.File
}

// lease borrows memory; nil without an error: another has it.
func lease(i Prewarmed) (_ *PrewarmedLease, err error) {
	p, err := find(i.dir)
	if err != nil {
		return nil, err
	}
	l := &PrewarmedLease{info: i, process: p}
	if alone, err := lockByte(p.info.Fd(), unix.F_OFD_SETLK, leasedByte); err != nil || !alone {
		l.Close()
		return nil, err
	}
	for n := range i.Pieces {
		fd, err := unix.PidfdGetfd(p.pidfd, firstPiece+n, 0)
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("borrow device memory: piece %d of %d: %w", n, len(i.Pieces), err)
		}
		l.files = append(l.files, os.NewFile(uintptr(fd), "device memory"))
	}
	return l, nil
}

// Info returns what it is.
func (l *PrewarmedLease) Info() Prewarmed { return l.info }

// Files are the descriptors of all pieces, in order. They live until Close.
func (l *PrewarmedLease) Files() []*os.File { return l.files }

// Use has no other process have the memory any more: afterwards it is not what it was.
func (l *PrewarmedLease) Use(ctx context.Context) {
	err := l.process.kill()
	if err == nil {
		err = os.RemoveAll(l.info.dir) // else it is swept
	}
	if err != nil {
		log.G(ctx).WithError(err).Warn("have device memory to itself")
	}
}

// Close gives the memory back, or, where it was used, lets go of what has no other owner.
func (l *PrewarmedLease) Close() error {
	l.process.close()
	for _, f := range l.files {
		f.Close() // it may be closed
	}
	return nil
}
