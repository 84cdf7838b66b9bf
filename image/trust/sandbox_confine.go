package trust

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Descriptors of the process.
const (
	socketFD = 3
	imagesFD = 4
)

// memoryLimit is how much memory the review may have, bytes, beside the images that it was handed.
const memoryLimit = 512 << 20

// Other limits of the process.
const (
	maxThreads     = 64
	maxDescriptors = 16      // it opens none, but for those of Go's runtime
	maxAddresses   = 4 << 30 // bytes; Go reserves more than it uses
	maxSeconds     = 3600    // of processor time, if no process is left that ends it sooner
)

// firstUser is the first user ID of a range that no process has, and likewise for groups. systemd assigns the IDs below the range to containers, and those from 2147352576 on to images.
// Source: https://systemd.io/UIDS-GIDS/
const firstUser = 1879048192

// confine takes from this process what the review does not need.
func confine() error {
	time.Sleep(time.Nanosecond) // Go's runtime opens what it waits with, which it could not later
	if err := closeOthers(); err != nil {
		return fmt.Errorf("close what was inherited: %w", err)
	}
	if err := emptyRoot(); err != nil {
		return err
	}
	for _, l := range []struct {
		what     string
		resource int
		most     uint64
	}{
		{"memory", unix.RLIMIT_DATA, memoryLimit},
		{"addresses", unix.RLIMIT_AS, maxAddresses},
		{"locked memory", unix.RLIMIT_MEMLOCK, 0},
		{"processor time", unix.RLIMIT_CPU, maxSeconds},
		{"length of files", unix.RLIMIT_FSIZE, 0},
		{"core dumps", unix.RLIMIT_CORE, 0},
		{"descriptors", unix.RLIMIT_NOFILE, maxDescriptors},
		{"threads", unix.RLIMIT_NPROC, maxThreads},
	} {
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.most, Max: l.most}); err != nil {
			return fmt.Errorf("limit the %s of the review: %w", l.what, err)
		}
	}
	if err := becomeNobody(); err != nil {
		return err
	}
	return filterCalls()
}

// closeOthers closes what is open but for the standard streams, the socket, and what Go's runtime waits with.
func closeOthers() error {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if fd <= socketFD || errors.Is(err, fs.ErrNotExist) || target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]" {
			continue // that was the directory's own
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
}

// emptyRoot makes an empty file system, which is mounted nowhere, the root directory.
func emptyRoot() error {
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make an empty root directory: fsopen: %w", err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return fmt.Errorf("make an empty root directory: fsconfig: %w", err)
	}
	mount, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fmt.Errorf("make an empty root directory: fsmount: %w", err)
	}
	defer unix.Close(mount)
	if err := unix.Fchdir(mount); err != nil {
		return fmt.Errorf("make an empty root directory: fchdir: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("make an empty root directory: chroot: %w", err)
	}
	return nil
}

// becomeNobody takes a user and a group that no process has, in all threads: so the number of threads is this process's own, and all capabilities go.
func becomeNobody() error {
	var random [4]byte
	_, _ = rand.Read(random[:]) // it does not fail
	id := firstUser + int(binary.LittleEndian.Uint32(random[:])>>10)
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leave groups: %w", err)
	}
	if err := syscall.Setresgid(id, id, id); err != nil {
		return fmt.Errorf("become group %d: %w", id, err)
	}
	if err := syscall.Setresuid(id, id, id); err != nil {
		return fmt.Errorf("become user %d: %w", id, err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("look at capabilities: %w", err)
	}
	for _, s := range sets {
		if s.Effective|s.Permitted|s.Inheritable != 0 {
			return fmt.Errorf("the review keeps capabilities: %+v", sets)
		}
	}
	return nil
}
