package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// holders make one descriptor of each kind that Linux has beside files, pipes and sockets. Each returns how it is used, which must work again after a restore.
var holders = map[string]func() (checked, error){
	"timerfd":        holdTimer,
	"signalfd":       holdSignal,
	"eventfd":        holdEvent,
	"aio":            holdAIO,
	"epoll":          holdEpoll,
	"pidfd":          holdPid,
	"memfd":          func() (checked, error) { return holdMemory(0) },
	"memfd-seal":     func() (checked, error) { return holdMemory(unix.F_SEAL_SEAL) },
	"memfd-shrink":   func() (checked, error) { return holdMemory(unix.F_SEAL_SHRINK) },
	"memfd-grow":     func() (checked, error) { return holdMemory(unix.F_SEAL_GROW) },
	"memfd-write":    func() (checked, error) { return holdMemory(unix.F_SEAL_WRITE) },
	"memfd-future":   func() (checked, error) { return holdMemory(unix.F_SEAL_FUTURE_WRITE) },
	"memfd-exec":     func() (checked, error) { return holdMemory(unix.F_SEAL_EXEC) },
	"inotify-tmp":    func() (checked, error) { return holdInotify("/tmp") },
	"inotify-deep":   func() (checked, error) { return holdInotify("/srv/a/deep/directory") },
	"inotify-config": func() (checked, error) { return holdInotify("/etc") },
	"inotify-other":  func() (checked, error) { return holdInotify("/usr/share/kept") },
	"fanotify":       holdFanotify,
	"mqueue":         holdQueue,
	"io_uring":       holdRing,
	"userfaultfd":    holdUserfault,
	"perf":           holdPerf,
	"bpf":            holdMap,
	"traced":         holdTraced,
	"ended-tcp":      holdEnded,
	"nested-network": holdNested,
}

// startDescriptors holds a descriptor of one kind, or is traced.
func startDescriptors(flags *flag.FlagSet, args []string) (workload, error) {
	what := flags.String("what", "", "which kind, see holders")
	alone := flags.Bool("alone", false, "beside another workload: make /srv/alone, and answer nothing")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	hold, known := holders[*what]
	if !known {
		return nil, fmt.Errorf("hold %q: unknown", *what)
	}
	w, err := hold()
	if err != nil || !*alone {
		return w, err
	}
	if err := os.WriteFile("/srv/alone", nil, 0o600); err != nil {
		return nil, err
	}
	time.Sleep(time.Hour)
	return nil, nil
}

func holdTimer() (checked, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	every := unix.ItimerSpec{Interval: unix.Timespec{Nsec: 5e6}, Value: unix.Timespec{Nsec: 5e6}}
	if err := unix.TimerfdSettime(fd, 0, &every, nil); err != nil {
		return nil, err
	}
	return func() error { // a timer that has stopped does not return
		_, err := unix.Read(fd, make([]byte, 8))
		return err
	}, nil
}

func holdSignal() (checked, error) {
	// A signal for one thread is read by that thread.
	type request struct{ done chan error }
	requests, ready := make(chan request), make(chan error)
	go func() {
		runtime.LockOSThread()
		var set unix.Sigset_t
		set.Val[0] = 1 << (unix.SIGUSR2 - 1)
		err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
		fd := -1
		if err == nil {
			fd, err = unix.Signalfd(-1, &set, unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)
		}
		ready <- err
		for r := range requests {
			info := make([]byte, unsafe.Sizeof(unix.SignalfdSiginfo{}))
			err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGUSR2)
			if err == nil {
				_, err = unix.Read(fd, info)
			}
			r.done <- err
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return func() error {
		r := request{make(chan error)}
		requests <- r
		return <-r.done
	}, nil
}

func holdEvent() (checked, error) {
	fd, err := unix.Eventfd(7, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	seven := []byte{7, 0, 0, 0, 0, 0, 0, 0}
	return func() error {
		value := make([]byte, 8)
		if _, err := unix.Read(fd, value); err != nil || !bytes.Equal(value, seven) {
			return fmt.Errorf("the eventfd has %d, want 7 (%v)", value, err)
		}
		_, err := unix.Write(fd, seven)
		return err
	}, nil
}

func holdEpoll() (checked, error) {
	event, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: 99}); err != nil {
		return nil, err
	}
	return func() error {
		var events [2]unix.EpollEvent
		if n, err := unix.EpollWait(fd, events[:], 0); err != nil || n != 1 || events[0].Fd != 99 {
			return fmt.Errorf("epoll returns %d events, %+v (%v)", n, events[0], err)
		}
		return nil
	}, nil
}

func holdPid() (checked, error) {
	child := exec.Command("sleep", "1000000")
	if err := child.Start(); err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(child.Process.Pid, 0)
	if err != nil {
		return nil, err
	}
	return func() error { return unix.PidfdSendSignal(fd, 0, nil, 0) }, nil
}

// holdMemory has a memfd with one seal, which is not mapped.
func holdMemory(seal int) (checked, error) {
	fd, err := unix.MemfdCreate("held", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	if _, err := unix.Write(fd, []byte("content")); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err != nil {
		return nil, err
	}
	was, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, err
	}
	return func() error {
		content := make([]byte, 7)
		if _, err := unix.Pread(fd, content, 0); err != nil || string(content) != "content" {
			return fmt.Errorf("the memfd has %q (%v)", content, err)
		}
		if is, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || is != was {
			return fmt.Errorf("the memfd has seals %#x, want %#x (%v)", is, was, err)
		}
		return nil
	}, nil
}

func holdInotify(dir string) (checked, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
		return nil, err
	}
	return func() error {
		f, err := os.CreateTemp(dir, "new")
		if err != nil {
			return err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		_, err = unix.Read(fd, make([]byte, 4096))
		return err
	}, nil
}

func holdFanotify() (checked, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_CLOSE_WRITE|unix.FAN_EVENT_ON_CHILD, unix.AT_FDCWD, "/srv"); err != nil {
		return nil, err
	}
	return func() error {
		if err := os.WriteFile("/srv/watched", nil, 0o600); err != nil {
			return err
		}
		_, err := unix.Read(fd, make([]byte, 4096))
		return err
	}, nil
}

func holdQueue() (checked, error) {
	name, err := unix.BytePtrFromString("held")
	if err != nil {
		return nil, err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR|unix.O_NONBLOCK, 0o600, 0, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	send := func() error {
		message := []byte("hello")
		if _, _, errno := unix.Syscall6(unix.SYS_MQ_TIMEDSEND, fd, uintptr(unsafe.Pointer(&message[0])), uintptr(len(message)), 0, 0, 0); errno != 0 {
			return errno
		}
		return nil
	}
	return func() error {
		message := make([]byte, 8192)
		n, _, errno := unix.Syscall6(unix.SYS_MQ_TIMEDRECEIVE, fd, uintptr(unsafe.Pointer(&message[0])), uintptr(len(message)), 0, 0, 0)
		if errno != 0 || !strings.HasPrefix(string(message), "hello") {
			return fmt.Errorf("the queue has %q: %w", message[:min(n, 8)], errno)
		}
		return send()
	}, send()
}

func holdRing() (checked, error) {
	w, err := startUndumpable(flag.NewFlagSet("", flag.ContinueOnError), nil)
	if err != nil {
		return nil, err
	}
	return func() error {
		_, err := w.Check()
		return err
	}, nil
}

func holdUserfault() (checked, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	api := struct{ api, features, ioctls uint64 }{api: 0xaa}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, 0xc018aa3f, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return nil, errno
	}
	return stays(int(fd)), nil
}

func holdPerf() (checked, error) {
	fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return func() error {
		_, err := unix.Read(fd, make([]byte, 8))
		return err
	}, nil
}

// holdMap has a map of BPF. Source: bpf(2).
func holdMap() (checked, error) {
	attr := struct{ kind, key, value, entries, flags uint32 }{2, 4, 8, 1, 0} // BPF_MAP_TYPE_ARRAY
	fd, _, errno := unix.Syscall(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return nil, errno
	}
	access := func(command uintptr, value *uint64) error {
		key := uint32(0)
		attr := struct {
			fd, _      uint32
			key, value uint64
			flags      uint64
		}{fd: uint32(fd), key: uint64(uintptr(unsafe.Pointer(&key))), value: uint64(uintptr(unsafe.Pointer(value)))}
		_, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		runtime.KeepAlive(&key)
		if errno != 0 {
			return errno
		}
		return nil
	}
	value := uint64(42)
	return func() error {
		var is uint64
		if err := access(1, &is); err != nil || is != 42 { // BPF_MAP_LOOKUP_ELEM
			return fmt.Errorf("the map has %d, want 42 (%v)", is, err)
		}
		return nil
	}, access(2, &value) // BPF_MAP_UPDATE_ELEM
}

// holdEnded has the descriptor of a TCP connection that its peer has reset.
func holdEnded() (checked, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	c, err := l.Accept()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(peer.(*net.TCPConn).SetLinger(0), peer.Close()); err != nil {
		return nil, err
	}
	return func() error {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			return errors.New("the ended connection has data")
		}
		_, err := c.(*net.TCPConn).File() // the descriptor is there
		return err
	}, nil
}

// holdNested has a child with a network namespace of its own.
func holdNested() (checked, error) {
	child := exec.Command("sleep", "1000000")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	return func() error { return nil }, child.Start()
}

// holdTraced has a child that this process traces.
func holdTraced() (checked, error) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the tracer is a thread
		child := exec.Command("sleep", "1000000")
		err := child.Start()
		if err == nil {
			err = unix.PtraceSeize(child.Process.Pid)
		}
		done <- err
		select {}
	}()
	return func() error { return nil }, <-done
}

// stays reports whether a descriptor is of the same kind as it was.
func stays(fd int) checked {
	link := fmt.Sprintf("/proc/self/fd/%d", fd)
	was, _ := os.Readlink(link)
	return func() error {
		is, err := os.Readlink(link)
		if is != was {
			return errors.Join(err, fmt.Errorf("descriptor %d is %s, was %s", fd, is, was))
		}
		return nil
	}
}
