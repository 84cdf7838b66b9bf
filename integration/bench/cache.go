package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
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
	var stat unix.Cachestat_t
	err = unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &stat, 0)
	if errors.Is(err, unix.ENOSYS) { // before Linux 6.5
		return 0, 0, nil
	}
	return stat.Cache, uint64(info.Size()+4095) / 4096, os.NewSyscallError("cachestat "+f.Name(), err)
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
