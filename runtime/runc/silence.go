package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// States of tcp_info, from Linux, include/net/tcp_states.h.
const (
	tcpClosed    = 7
	tcpListening = 10
)

// repairOff ends repair mode without sending anything: TCP_REPAIR_OFF_NO_WP of Linux, include/uapi/linux/tcp.h.
const repairOff = -1

// Silence makes the TCP connections of a frozen container end without a word to their peers when it is killed, so that
// they can go on elsewhere. It puts them into repair mode, as CRIU does (https://criu.org/TCP_connection). If it fails,
// connections are as before.
func (c Container) Silence(ctx context.Context) error {
	pids, err := c.Processes(ctx)
	if err != nil {
		return err
	}
	return SilenceProcesses(pids)
}

// SilenceProcesses does what [Container.Silence] does, for a list of processes, which must stand still. runc need not know them.
func SilenceProcesses(pids []int) (err error) {
	var silent []int
	defer func() {
		for _, fd := range silent {
			if err != nil {
				err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR, repairOff))
			}
			_ = unix.Close(fd) // a copy
		}
	}()
	seen := map[string]bool{}
	for _, pid := range pids {
		fds, err := silence(pid, seen)
		silent = append(silent, fds...)
		if err != nil {
			return fmt.Errorf("silence connections of process %d: %w", pid, err)
		}
	}
	return nil
}

// Probe asks the peers of TCP connections of processes for the room that they have: a connection that was cut while a peer had none goes on at once, and not when a timer of the kernel's has run down, which grows
// with the time for which it was cut. The processes may run. The first error is returned when all is done.
func Probe(pids []int) (err error) {
	seen := map[string]bool{}
	for _, pid := range pids {
		failed := connections(pid, seen, func(socket int) (bool, error) {
			// The end of repair mode sends the probe, also if the connection was not in that mode, and clears SO_REUSEADDR. Source: Linux 6.18, net/ipv4/tcp.c, do_tcp_setsockopt.
			reuse, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR)
			if err == nil {
				err = unix.SetsockoptInt(socket, unix.SOL_TCP, unix.TCP_REPAIR, 0)
			}
			if err == nil {
				err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse)
			}
			return false, err
		})
		if failed != nil && err == nil {
			err = fmt.Errorf("probe the connections of process %d: %w", pid, failed)
		}
	}
	return err
}

// silence returns copies of the connections of a process that it has put into repair mode. Sockets in seen are left alone.
func silence(pid int, seen map[string]bool) (silent []int, err error) {
	err = connections(pid, seen, func(socket int) (bool, error) {
		if err := unix.SetsockoptInt(socket, unix.SOL_TCP, unix.TCP_REPAIR, 1); err != nil {
			return false, fmt.Errorf("put it into repair mode: %w", err)
		}
		silent = append(silent, socket)
		return true, nil
	})
	return silent, err
}

// connections calls do with a copy of each TCP connection of a process, and closes the copy unless do keeps it. Sockets in seen are left out.
func connections(pid int, seen map[string]bool, do func(socket int) (keep bool, err error)) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process: %w", err)
	}
	defer unix.Close(process)
	links, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "fd/*"))
	if err != nil {
		return err
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			return fmt.Errorf("look at descriptors: %w", err)
		}
		if !strings.HasPrefix(target, "socket:") || seen[target] {
			continue
		}
		seen[target] = true
		fd, err := strconv.Atoi(filepath.Base(link))
		if err != nil {
			return err
		}
		socket, err := unix.PidfdGetfd(process, fd, 0)
		if err != nil {
			return fmt.Errorf("get descriptor %d: %w", fd, err)
		}
		keep := false
		if connected(socket) {
			keep, err = do(socket)
		}
		if !keep {
			_ = unix.Close(socket)
		}
		if err != nil {
			return fmt.Errorf("descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// connected reports whether a socket is of TCP and would tell its peer of its end.
func connected(socket int) bool {
	if protocol, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_TCP {
		return false
	}
	info, err := unix.GetsockoptTCPInfo(socket, unix.SOL_TCP, unix.TCP_INFO)
	return err == nil && info.State != tcpListening && info.State != tcpClosed
}
