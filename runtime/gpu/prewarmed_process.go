package gpu

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// PrewarmedCommand is the argument that makes a program the process that keeps memory.
const PrewarmedCommand = "keep-device-memory"

// PrewarmedName is what ps calls the process.
const PrewarmedName = "cryo-prewarmed"

// Descriptors of the process. The pieces follow each other in their order.
const (
	startDescriptor = 3 // a channel to its starter
	infoDescriptor  = 4
	firstPiece      = 5
)

// Bytes of an [Prewarmed]'s file that are locked.
const (
	keptByte   = 0 // by the process, with F_SETLK: the kernel tells its id
	leasedByte = 1 // by the process that has a lease, with F_OFD_SETLK
)

// ServePrewarmed is the process: it has descriptors of device memory, and does nothing. It ends early if its starter does so before the directory has its name.
func ServePrewarmed() error {
	_ = os.WriteFile("/proc/self/comm", []byte(PrewarmedName), 0) // for ps; it was exe
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	c, err := channel.Open(startDescriptor)
	if err != nil {
		return err
	}
	defer c.Close()
	if ok, err := lockByte(infoDescriptor, unix.F_SETLK, keptByte); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("keep device memory: another process does: %w", errdefs.ErrAborted))
	}
	var named struct{}
	if err := c.Send(named); err != nil {
		return err
	}
	if _, err := c.Receive(&named); err != nil {
		return fmt.Errorf("keep device memory: who began has ended: %w", err)
	}
	_ = c.Close()
	for {
		_ = unix.Pause() // until a signal ends it
	}
}

// lockByte locks one byte of a file; false: another has it.
func lockByte(fd uintptr, how int, at int64) (bool, error) {
	err := unix.FcntlFlock(fd, how, &unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock a file: %w", err)
	}
	return true, nil
}

// locker looks which process has locked one byte of a file. pid is of no meaning for locks by F_OFD_SETLK.
func locker(f *os.File, at int64) (pid int, locked bool, err error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &l); err != nil {
		return 0, false, fmt.Errorf("look who has locked %s: %w", f.Name(), err)
	}
	return int(l.Pid), l.Type != unix.F_UNLCK, nil
}

// process is one that keeps device memory.
type process struct {
	info  *os.File
	pidfd int // -1: it is in another PID namespace, from which it is only seen that there is one
}

// find finds the process that keeps what is in a directory. [fs.ErrNotExist]: there is none.
func find(dir string) (_ *process, err error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	d.Close()
	f, err := os.OpenFile(filepath.Join(dir, infoName), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	p := &process{info: f, pidfd: -1}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	pid, locked, err := locker(f, keptByte)
	if err == nil && !locked {
		err = fmt.Errorf("no process keeps the memory of %s: %w", dir, fs.ErrNotExist)
	}
	if err != nil || pid == 0 {
		return p, err
	}
	if p.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		p.pidfd = -1
		return nil, fmt.Errorf("open process %d, which keeps the memory of %s: %w", pid, dir, err)
	}
	// Only if it has the lock still, the number was its own all the time.
	if again, _, err := locker(f, keptByte); err != nil || again != pid {
		return nil, errors.Join(err, fmt.Errorf("process %d does not keep the memory of %s any more: %w", pid, dir, fs.ErrNotExist))
	}
	return p, nil
}

func (p *process) close() {
	p.info.Close()
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
}

// endTime is how long a process may take to its end when it is killed.
const endTime = 3 * time.Second

// kill ends the process, and waits until it has let go of its memory.
func (p *process) kill() error {
	if p.pidfd < 0 {
		return failure.New(errdefs.ErrFailedPrecondition, "end it where cryo prewarm --gpu was called: on the machine, or in the same container", "the process that keeps device memory is in another PID namespace")
	}
	if err := unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the process that keeps device memory: %w", err)
	}
	for until := time.Now().Add(endTime); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, max(0, int(time.Until(until).Milliseconds())))
		switch {
		case n > 0:
			return nil
		case !errors.Is(err, unix.EINTR):
			return errors.Join(err, fmt.Errorf("end the process that keeps device memory: it lives after %s: %w", endTime, errdefs.ErrUnavailable))
		}
	}
}

// discard ends the process that keeps what is in a directory, if there is one, and removes the directory.
func discard(dir string) error {
	p, err := find(dir)
	if err == nil {
		err = p.kill()
		p.close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return os.RemoveAll(dir)
}

// hear waits for a word of the process.
func hear(c *channel.Channel) error {
	var word struct{}
	fds, err := c.Receive(&word)
	channel.Close(fds) // it sends none
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("it has ended: %w", errdefs.ErrAborted)
	}
	return err
}
