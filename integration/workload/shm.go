package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// sharedMemory is memory that is not private: System V, POSIX (/dev/shm, also a named semaphore), memfd, anonymous shared and a file mapping.
type sharedMemory struct{ maps map[string]sharedMap }

type sharedMap struct{ pages, content []byte }

func startSharedMemory(flags *flag.FlagSet, args []string) (workload, error) {
	kib := flags.Int("size", 1024, "size of each mapping, in KiB")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	s := &sharedMemory{maps: map[string]sharedMap{}}
	size := *kib << 10
	for i, m := range []struct {
		name string
		open func(size int) ([]byte, error)
	}{
		{"system v", openSystemV},
		{"posix", func(size int) ([]byte, error) { return openFile("/dev/shm/workload", size) }},
		{"file", func(size int) ([]byte, error) { return openFile("/srv/mapped", size) }},
		{"named", openNamed},
		{"memfd", openMemfd},
		{"anonymous", func(size int) ([]byte, error) { return mapShared(-1, size, unix.MAP_ANONYMOUS) }},
	} {
		pages, err := m.open(size)
		if err != nil {
			return nil, fmt.Errorf("open %s shared memory: %w", m.name, err)
		}
		content := make([]byte, size)
		_, _ = newRandom(uint64(100 + i)).Read(content) // never fails
		copy(pages, content)
		s.maps[m.name] = sharedMap{pages, content}
	}
	return s, nil
}

func mapShared(fd, size, flags int) ([]byte, error) {
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|flags)
}

func openSystemV(size int) ([]byte, error) {
	id, err := unix.SysvShmGet(0x6372, size, unix.IPC_CREAT|0o600)
	if err != nil {
		return nil, err
	}
	return unix.SysvShmAttach(id, 0, 0)
}

func openFile(path string, size int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	return mapShared(int(f.Fd()), size, 0)
}

// openNamed makes and maps a file, links it under a second name, and removes the first, as sem_open of glibc does.
func openNamed(size int) ([]byte, error) {
	const first, name = "/dev/shm/sem.aB3dEf", "/dev/shm/sem.workload"
	pages, err := openFile(first, size)
	if err != nil {
		return nil, err
	}
	return pages, errors.Join(os.Link(first, name), os.Remove(first))
}

func openMemfd(size int) ([]byte, error) {
	fd, err := unix.MemfdCreate("workload", 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	return mapShared(fd, size, 0)
}

func (s *sharedMemory) Check() (map[string]any, error) {
	state := map[string]any{"mappings": len(s.maps)}
	for name, m := range s.maps {
		if !bytes.Equal(m.pages, m.content) {
			return state, fmt.Errorf("%s shared memory has other content", name)
		}
	}
	// The mappings are still one with their files.
	for name, path := range map[string]string{"posix": "/dev/shm/workload", "named": "/dev/shm/sem.workload"} {
		m := s.maps[name]
		m.pages[0]++
		m.content[0]++
		content, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(content, m.content) {
			return state, fmt.Errorf("%s and its mapping differ (%v)", path, err)
		}
	}
	return state, nil
}
