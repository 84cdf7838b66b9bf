package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// chill takes the files below directories out of the page cache, and makes sure of it.
func (b *bench) chill(dirs ...string) error {
	if err := b.settle(); err != nil {
		return err
	}
	var cached, total uint64
	err := files(dirs, func(f *os.File) error {
		c, n, err := chillFile(f)
		cached, total = cached+c, total+n
		return err
	})
	if err != nil {
		return fmt.Errorf("clear the page cache: %w", err)
	}
	if cached > total/20 {
		return &warmError{cached, total}
	}
	return nil
}

// warmError says that files stay in the page cache, as those of a tmpfs do.
type warmError struct{ cached, total uint64 }

func (e *warmError) Error() string {
	return fmt.Sprintf("%d of %d pages stay in the page cache", e.cached, e.total)
}

// chillFile gives how many of a file's pages are still in the page cache afterwards.
func chillFile(f *os.File) (cached, total uint64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return 0, 0, os.NewSyscallError("fadvise "+f.Name(), err)
	}
	if info.Size() == 0 {
		return 0, 0, nil
	}
	if cached, total, err = format.CachedPages(f, 0, info.Size()); err != nil {
		return 0, 0, fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	return cached, total, nil
}

// apartError says that what is to be compared lies on different disks.
type apartError struct{ one, other string }

func (e *apartError) Error() string {
	return fmt.Sprintf("not comparable: %s and %s are on different file systems", e.one, e.other)
}

// together makes sure that two directories are on the same file system: times of a cold page cache are those of its disk.
func together(one, other string) error {
	var a, b unix.Stat_t
	if err := errors.Join(unix.Stat(one, &a), unix.Stat(other, &b)); err != nil {
		return fmt.Errorf("look where files are: %w", err)
	}
	if a.Dev != b.Dev {
		return &apartError{one, other}
	}
	return nil
}

// heat reads the files below directories, so that they are in the page cache, and writes out what is to be written.
func (b *bench) heat(dirs ...string) error {
	err := files(dirs, func(f *os.File) error {
		_, err := io.Copy(io.Discard, f)
		return err
	})
	if err != nil {
		return fmt.Errorf("fill the page cache: %w", err)
	}
	return b.settle()
}

// files calls f for every regular file below directories; those that go meanwhile are left out.
func files(dirs []string, f func(*os.File) error) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			file, err := os.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			defer file.Close()
			return f(file)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
