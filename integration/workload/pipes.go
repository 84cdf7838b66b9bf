package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// pipes hold data in flight: in a pipe, a FIFO, socket pairs and an eventfd, with an epoll that knows which are readable,
// and a timer that is running.
type pipes struct {
	content []byte
	ends    map[string][2]int // read and write end
	event   int
	timer   int
	epoll   int
}

func startPipes(flags *flag.FlagSet, args []string) (workload, error) {
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	p := &pipes{content: make([]byte, 8192), ends: map[string][2]int{}}
	_, _ = newRandom(8).Read(p.content) // never fails
	for name, open := range map[string]func() ([2]int, error){
		"pipe": openPipe, "fifo": openFIFO,
		"stream socket pair":   func() ([2]int, error) { return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0) },
		"datagram socket pair": func() ([2]int, error) { return unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0) },
	} {
		ends, err := open()
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		p.ends[name] = ends
		if err := p.write(name); err != nil {
			return nil, err
		}
	}
	return p, p.openEvents()
}

func openPipe() (ends [2]int, err error) {
	return ends, unix.Pipe2(ends[:], unix.O_NONBLOCK)
}

func openFIFO() (ends [2]int, err error) {
	const path = "/srv/fifo"
	_ = os.Remove(path)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return ends, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK, 0)
	return [2]int{fd, fd}, err
}

func (p *pipes) openEvents() (err error) {
	if p.event, err = unix.Eventfd(42, unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("open eventfd: %w", err)
	}
	if p.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("open timerfd: %w", err)
	}
	hour := unix.ItimerSpec{Value: unix.Timespec{Sec: 3600}}
	if err := unix.TimerfdSettime(p.timer, 0, &hour, nil); err != nil {
		return fmt.Errorf("set timerfd: %w", err)
	}
	if p.epoll, err = unix.EpollCreate1(0); err != nil {
		return fmt.Errorf("open epoll: %w", err)
	}
	watched := []int{p.event, p.timer}
	for _, ends := range p.ends {
		watched = append(watched, ends[0])
	}
	for _, fd := range watched {
		if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	return nil
}

func (p *pipes) write(name string) error {
	if n, err := unix.Write(p.ends[name][1], p.content); err != nil || n != len(p.content) {
		return fmt.Errorf("write %s: %d bytes (%v)", name, n, err)
	}
	return nil
}

// Check reads all that is in flight and puts it back.
func (p *pipes) Check() (map[string]any, error) {
	state := map[string]any{"pipes": len(p.ends)}
	var events [16]unix.EpollEvent
	if n, err := unix.EpollWait(p.epoll, events[:], 0); err != nil || n != len(p.ends)+1 {
		return state, fmt.Errorf("epoll says that %d are readable, not %d (%v)", n, len(p.ends)+1, err)
	}
	for name, ends := range p.ends {
		content := make([]byte, len(p.content)+1)
		n, err := unix.Read(ends[0], content)
		if err != nil || !bytes.Equal(content[:n], p.content) {
			return state, fmt.Errorf("%s holds other bytes, %d of them (%v)", name, n, err)
		}
		if err := p.write(name); err != nil {
			return state, err
		}
	}
	var value [8]byte
	if _, err := unix.Read(p.event, value[:]); err != nil || binary.NativeEndian.Uint64(value[:]) != 42 {
		return state, fmt.Errorf("eventfd has %d (%v)", binary.NativeEndian.Uint64(value[:]), err)
	}
	if _, err := unix.Write(p.event, value[:]); err != nil {
		return state, fmt.Errorf("write eventfd: %w", err)
	}
	var left unix.ItimerSpec
	if err := unix.TimerfdGettime(p.timer, &left); err != nil || left.Value.Sec < 3000 || left.Value.Sec > 3600 {
		return state, fmt.Errorf("timer has %d s left (%v)", left.Value.Sec, err)
	}
	return state, nil
}
