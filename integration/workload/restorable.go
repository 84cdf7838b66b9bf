package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// startRestorable holds what CRIU dumps and cannot restore.
func startRestorable(flags *flag.FlagSet, args []string) (workload, error) {
	what := flags.String("what", "", "sealed-memfd, sealed-private-memfd, sealed-future-memfd, sealed-later-memfd, mapped-lock, mapped-private-lock, linked-socket, sqlite")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch *what {
	case "sealed-memfd":
		return sealMemfd(unix.F_SEAL_WRITE, unix.MAP_SHARED, false)
	case "sealed-private-memfd":
		return sealMemfd(unix.F_SEAL_WRITE, unix.MAP_PRIVATE, false)
	case "sealed-future-memfd":
		return sealMemfd(unix.F_SEAL_FUTURE_WRITE, unix.MAP_SHARED, false)
	case "sealed-later-memfd":
		return sealMemfd(unix.F_SEAL_FUTURE_WRITE, unix.MAP_SHARED, true)
	case "mapped-lock":
		return lockMapped(unix.MAP_SHARED)
	case "mapped-private-lock":
		return lockMapped(unix.MAP_PRIVATE)
	case "linked-socket":
		return linkSocket()
	case "sqlite":
		return openDatabase()
	}
	return nil, fmt.Errorf("hold %q: unknown", *what)
}

// checked is a workload that is a function.
type checked func() error

func (c checked) Check() (map[string]any, error) { return nil, c() }

// sealMemfd maps a memfd and seals it; one that is written through its mapping is mapped before.
func sealMemfd(seal, flags int, written bool) (workload, error) {
	fd, err := unix.MemfdCreate("sealed", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if _, err := unix.Write(fd, make([]byte, 4096)); err != nil {
		return nil, err
	}
	var mapped []byte
	if written {
		if mapped, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, flags); err != nil {
			return nil, err
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err != nil {
		return nil, fmt.Errorf("seal a memfd: %w", err)
	}
	if !written {
		if mapped, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ, flags); err != nil {
			return nil, err
		}
	}
	return checked(func() error {
		if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&seal == 0 || mapped[0] != 0 {
			return fmt.Errorf("the memfd has seals %#x (%v)", seals, err)
		}
		if written {
			mapped[1]++
		}
		return nil
	}), nil
}

// lockMapped holds a POSIX lock on a mapped file, as SQLite in WAL mode does.
func lockMapped(flags int) (workload, error) {
	f, err := os.Create("/srv/mapped")
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(4096); err != nil {
		return nil, err
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 128, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock); err != nil {
		return nil, err
	}
	return checked(func() error {
		mapped[0]++
		seen := unix.Flock_t{Type: unix.F_WRLCK, Start: 128, Len: 1} // of the open file: one of the process is in its way
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &seen); err != nil || seen.Type != unix.F_WRLCK {
			return fmt.Errorf("the lock is gone (%v)", err)
		}
		return nil
	}), nil
}

// linkSocket binds a socket under one name and gives it another, as supervisord does.
func linkSocket() (workload, error) {
	const first, last = "/srv/control.sock.1", "/srv/control.sock"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: first, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	go echo(l)
	if err := errors.Join(os.Link(first, last), os.Remove(first)); err != nil {
		return nil, err
	}
	return checked(func() error {
		c, err := connect("unix", last)
		if err != nil {
			return err
		}
		return c.conn.Close()
	}), nil
}

// openDatabase has a database of SQLite open, and compares what SQLite compares before it writes.
func openDatabase() (workload, error) {
	const path = "/srv/data.db"
	if err := os.WriteFile(path, append([]byte("SQLite format 3\x00"), make([]byte, 4080)...), 0o600); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	was, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return checked(func() error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if is, was := info.Sys().(*syscall.Stat_t), was.Sys().(*syscall.Stat_t); is.Ino != was.Ino || is.Dev != was.Dev {
			return fmt.Errorf("the file was %d on %d, is %d on %d", was.Ino, was.Dev, is.Ino, is.Dev)
		}
		return nil
	}), nil
}
