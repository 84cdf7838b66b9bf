package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Work is the directory of one operation (mode 0700), gone with it. It is an [Operation] too.
type Work struct {
	Dir  string
	lock *os.File // nil: the directory is not in the store
	op   *Operation
}

// Work makes a working directory and removes those whose owner died.
func (s *Store) Work(ctx context.Context) (*Work, error) {
	op, err := s.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.nameStore(ctx); err != nil {
		op.Close()
		return nil, fmt.Errorf("create working directory: %w", mapError(s.root, err))
	}
	for {
		dir, f, err := s.tryWork()
		if err != nil {
			op.Close()
			return nil, fmt.Errorf("create working directory: %w", mapError(s.root, err))
		}
		if f != nil {
			return &Work{Dir: dir, lock: f, op: op}, nil
		}
	}
}

// Scratch is Work for a process that only reads the store: where that is on a read-only file system, the directory is among temporary files.
func (s *Store) Scratch(ctx context.Context) (*Work, error) {
	w, err := s.Work(ctx)
	if !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrNotExist) { // a read-only store of an earlier version may lack the directory
		return w, err
	}
	op, err := s.Begin(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cryo-")
	if err != nil {
		op.Close()
		return nil, fmt.Errorf("create working directory: %w", err)
	}
	return &Work{Dir: dir, op: op}, nil
}

// tryWork returns no file where another process swept the directory before it was locked.
func (s *Store) tryWork() (string, *os.File, error) {
	dir, err := os.MkdirTemp(s.work(), "")
	if err != nil {
		return "", nil, err
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, err
	}
	ok, err := TryLock(f, unix.LOCK_EX)
	if err != nil {
		f.Close()
		os.RemoveAll(dir)
		return "", nil, err
	}
	if !ok || !Still(f, path) {
		f.Close()
		return "", nil, nil
	}
	return dir, f, nil
}

// Release ends the operation, and leaves the directory: blobs are needed no more, or are open.
func (w *Work) Release() error { return w.op.Close() }

// Close removes the directory and ends the operation.
func (w *Work) Close() error {
	err := removeTree(w.Dir)
	if w.lock != nil {
		w.lock.Close()
	}
	return errors.Join(err, w.op.Close())
}

// sweepWork removes the working directories that no process has locked. If a directory has no lock yet, sweepWork locks it first, so that the process that has just made it notices.
func (s *Store) sweepWork() error {
	entries, err := os.ReadDir(s.work())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		_ = sweepDir(filepath.Join(s.work(), e.Name()), os.O_CREATE) // what cannot be removed now is tried again by the next operation
	}
	return nil
}

// SweepWork removes the directory of a [Work] whose owner died; nil: it is gone, or its owner is removing it. The kind of its error is Unavailable where the owner
// lives.
func SweepWork(dir string) error {
	return sweepDir(dir, 0) // a lock that it made would keep the owner from removing the directory
}

func sweepDir(dir string, create int) error {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|create|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	switch ok, err := TryLock(f, unix.LOCK_EX); {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("remove %s: it is in use: %w", dir, errdefs.ErrUnavailable)
	case !Still(f, path):
		return nil // gone meanwhile
	}
	return removeTree(dir)
}

// removeTree removes dir, but never what is mounted below it: mounts go first.
func removeTree(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if err := unix.Unmount(mounts[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", mounts[i], err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// mountsBelow lists the mount points below dir, outer ones first.
func mountsBelow(dir string) (below []string, err error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !strings.HasPrefix(m.Mountpoint, dir+"/"), false })
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	for _, m := range mounts {
		below = append(below, m.Mountpoint)
	}
	return below, nil
}
