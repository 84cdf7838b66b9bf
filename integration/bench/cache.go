package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

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
		return inCore(f, info.Size())
	}
	return stat.Cache, uint64(info.Size()+4095) / 4096, os.NewSyscallError("cachestat "+f.Name(), err)
}

// inCore asks mincore(2) for the same.
func inCore(f *os.File, size int64) (cached, total uint64, err error) {
	if size == 0 {
		return 0, 0, nil
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, os.NewSyscallError("mmap "+f.Name(), err)
	}
	defer unix.Munmap(m)
	pages := make([]byte, (size+4095)/4096)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(size), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		return 0, 0, os.NewSyscallError("mincore "+f.Name(), errno)
	}
	for _, p := range pages {
		cached += uint64(p & 1) // the other bits mean nothing
	}
	return cached, uint64(len(pages)), nil
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
