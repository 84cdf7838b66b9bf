package gpu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// PrewarmedDir is where the device memory is that was loaded for the snapshots of a store. Its methods may be called from several
// processes at once.
type PrewarmedDir struct{ path string }

// NewPrewarmedDir returns the directory that belongs to the store under root. Nothing is made yet.
func NewPrewarmedDir(root string) *PrewarmedDir {
	return &PrewarmedDir{path: filepath.Join(root, "warm.gpu")}
}

// unfinished begins the name of what is being made.
const unfinished = "new-"

// List returns all that is loaded, the least recently used first, and clears away what is left of processes that died.
func (d *PrewarmedDir) List(ctx context.Context) ([]Prewarmed, error) {
	if _, err := os.Lstat(d.path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	f, err := d.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	alone, err := tryLock(f)
	if err != nil {
		return nil, err
	}
	return d.list(ctx, alone)
}

// list is List. Nothing is cleared away unless the lock is held.
func (d *PrewarmedDir) list(ctx context.Context, sweep bool) (all []Prewarmed, err error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list device memory that is kept loaded: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(d.path, e.Name())
		if strings.HasPrefix(e.Name(), unfinished) {
			if sweep {
				err = errors.Join(err, discard(dir))
			}
			continue
		}
		info, broken := look(dir)
		if broken != nil {
			if sweep {
				log.G(ctx).WithError(broken).WithField("dir", dir).Debug("clear away device memory that no process keeps")
				err = errors.Join(err, discard(dir))
			}
			continue
		}
		all = append(all, info)
	}
	slices.SortStableFunc(all, func(a, b Prewarmed) int { return a.Used.Compare(b.Used) })
	if sweep && len(all) == 0 {
		_ = os.Remove(d.path) // unless something is in it
	}
	return all, err
}

// look reads what is in a directory, and whether it is leased. It is an error if no process keeps it.
func look(dir string) (i Prewarmed, err error) {
	if i, err = readInfo(dir); err != nil {
		return i, err
	}
	p, err := find(dir)
	if err != nil {
		return i, err
	}
	defer p.close()
	_, i.Leased, err = locker(p.info, leasedByte)
	return i, err
}

// Lease borrows what was loaded for a snapshot, the first of which fits says yes; nil: there is none, or others have it.
func (d *PrewarmedDir) Lease(digest string, fits func(Prewarmed) bool) (*PrewarmedLease, error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look for device memory that is kept loaded: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unfinished) {
			continue
		}
		info, broken := readInfo(filepath.Join(d.path, e.Name()))
		if broken != nil || info.Version != prewarmedVersion || info.Digest != digest || !fits(info) {
			continue
		}
		l, failed := lease(info)
		if l != nil {
			return l, nil
		}
		err = errors.Join(err, failed)
	}
	return nil, err
}

// Remove ends what was loaded. What a restore has of it lives until it is used or given up.
func (d *PrewarmedDir) Remove(ctx context.Context, i Prewarmed) error {
	f, err := d.lock(ctx)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := discard(i.dir); err != nil {
		return fmt.Errorf("let go of device memory: %w", err)
	}
	_ = os.Remove(d.path) // unless something is in it
	return nil
}

// lock has no other process add or remove.
func (d *PrewarmedDir) lock(ctx context.Context) (*os.File, error) {
	f, err := d.open()
	if err != nil {
		return nil, err
	}
	for {
		ok, err := tryLock(f)
		if err == nil && ok {
			return f, nil
		}
		if err == nil {
			select {
			case <-ctx.Done():
				err = fmt.Errorf("wait for another cryo prewarm --gpu: %w", context.Cause(ctx))
			case <-time.After(10 * time.Millisecond):
				continue
			}
		}
		f.Close()
		return nil, err
	}
}

func (d *PrewarmedDir) open() (*os.File, error) {
	f, err := os.OpenFile(d.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("look for device memory that is kept loaded: %w", err)
	}
	return f, nil
}

func tryLock(f *os.File) (bool, error) {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// make makes the directory, root's alone.
func (d *PrewarmedDir) make() error {
	err := os.Mkdir(d.path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		var f *os.File
		if f, err = openDir(d.path); err == nil {
			f.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("make a place for device memory: %w", err)
	}
	return nil
}

// openDir opens a directory that other users cannot look into.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		f.Close()
		return nil, fmt.Errorf("%s is not of this user alone: %w", path, errdefs.ErrPermissionDenied)
	}
	return f, nil
}
