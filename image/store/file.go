package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lock takes the exclusive lock on path, waiting as long as ctx allows.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := lockFile(ctx, path, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// lockFile opens path, creating it, and takes its flock in the mode given. Closing the file gives the lock back, so does
// the death of the process.
func lockFile(ctx context.Context, path string, mode int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := Lock(ctx, f, mode); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lockReading is lockFile for a process that only reads the store. On a file system that is mounted read-only it takes the lock of the file as it is; no file: there is none, and
// nothing was collected.
func lockReading(ctx context.Context, path string) (*os.File, error) {
	f, err := lockFile(ctx, path, unix.LOCK_SH)
	if !errors.Is(err, unix.EROFS) {
		return f, err
	}
	if f, err = os.Open(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	if err := Lock(ctx, f, unix.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Lock takes the flock of an open file or directory, unix.LOCK_EX or unix.LOCK_SH, waiting as long as ctx allows. It polls: a blocked flock(2) could not be cancelled.
func Lock(ctx context.Context, f *os.File, mode int) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		ok, err := TryLock(f, mode)
		if err != nil || ok {
			return err
		}
		t := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("lock %s: %w", f.Name(), context.Cause(ctx))
		case <-t.C:
		}
	}
}

// TryLock takes the flock of an open file and says whether it got it, without waiting.
func TryLock(f *os.File, mode int) (bool, error) {
	for {
		switch err := unix.Flock(int(f.Fd()), mode|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		default:
			return false, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// Still reports whether path names the file that f has open: it may have been swept between open and flock.
func Still(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

// createTemp makes a new file in dir that is not swept while it is open.
func createTemp(dir, prefix string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(dir, prefix)
		if err != nil {
			return nil, err
		}
		ok, err := TryLock(f, unix.LOCK_EX)
		if err == nil && ok && Still(f, f.Name()) {
			return f, nil
		}
		f.Close()
		if err != nil {
			os.Remove(f.Name())
			return nil, err
		}
	}
}

// all is for [sweepFiles].
func all(fs.FileInfo) bool { return true }

// sweepFiles removes the files in dir that no process has locked and of which over is true.
func sweepFiles(dir string, over func(fs.FileInfo) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if i, err := e.Info(); err != nil || !i.Mode().IsRegular() || !over(i) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // gone meanwhile
		}
		if ok, err := TryLock(f, unix.LOCK_EX); err == nil && ok && Still(f, path) {
			os.Remove(path)
		}
		f.Close()
	}
	return nil
}

// ReplaceFile puts what write writes at path, durably: the old content or the new is there, whatever happens.
func ReplaceFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Bytes is for [ReplaceFile].
func Bytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// dropAborted removes what ReplaceFile left of path where it was killed. path must not be replaced meanwhile.
func dropAborted(path string) {
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"-*")) // the pattern is well formed
	for _, l := range left {
		_ = os.Remove(l) // the next one tries again
	}
}

// SyncDir makes durable what names there are in a directory.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// readLimited reads a file that must not be larger than limit bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, Corrupt(path, fmt.Errorf("larger than %d bytes", limit))
	}
	return data, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
