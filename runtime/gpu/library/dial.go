package library

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// wakeTimeout is how long a library has to show its socket, and then to say what it is, and how long it waits for whom it showed it to.
const wakeTimeout = 5 * time.Second

// wakeSignal is for the library's thread alone, which blocks all signals and waits for this one. NPTL uses 32 and 33, and programs
// count from SIGRTMIN or down from SIGRTMAX.
const wakeSignal = unix.Signal(62)

// Dial wakes the library in a process and takes its socket. Without a library there the error is a [GoneError].
func Dial(ctx context.Context, pid int) (*Process, error) {
	const step = "wake its library"
	tid, ok, err := find("/proc", pid)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &GoneError{PID: pid, Step: step, Err: errors.New("no thread is called " + threadName)}
	}
	if err := unix.Tgkill(pid, tid, wakeSignal); err != nil {
		return nil, &GoneError{PID: pid, Step: step, Err: fmt.Errorf("tgkill: %w", err), Silent: true}
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	number, err := shown(ctx, pid, tid)
	if err != nil {
		return nil, &GoneError{PID: pid, Step: step, Err: err, Silent: true}
	}
	socket, err := take(pid, number)
	if err != nil {
		return nil, err
	}
	return &Process{pid: pid, socket: socket}, nil
}

// shown waits until the thread's name has a descriptor's number, and gives that.
func shown(ctx context.Context, pid, tid int) (int, error) {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		name, err := comm("/proc", pid, tid)
		if err != nil {
			return 0, err
		}
		if text, ok := strings.CutPrefix(name, threadName+" "); ok {
			number, err := strconv.ParseUint(text, 10, 31)
			if err != nil {
				return 0, fmt.Errorf("its thread is called %q", name)
			}
			return int(number), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for its socket: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}

// take copies the socket out of the process, and makes sure that it is one that the process itself has made: nothing that it has got
// from elsewhere is ever talked to.
func take(pid, number int) (int, error) {
	const step = "take its socket"
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, &GoneError{PID: pid, Step: step, Err: fmt.Errorf("pidfd_open: %w", err)}
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, number, 0)
	if err != nil {
		return -1, &GoneError{PID: pid, Step: step, Err: fmt.Errorf("pidfd_getfd: %w", err)}
	}
	problem := func() string {
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || domain != unix.AF_UNIX {
			return "what it shows is not a unix socket"
		}
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
			return "what it shows is not a socket of packets"
		}
		if peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil || int(peer.Pid) != pid {
			return "the socket it shows was made by another process"
		}
		return ""
	}()
	if problem != "" {
		_ = unix.Close(fd)
		return -1, protocolError(pid, errors.New(problem))
	}
	return fd, nil
}
