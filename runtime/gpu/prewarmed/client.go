package prewarmed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// answerTime is how long the process may take for an answer, which costs it microseconds.
var answerTime = 3 * time.Second

// peer is a connection to a process that keeps memory.
type peer struct {
	channel *channel.Channel
	pid     int
	pidfd   int // of the process that listens; -1: it cannot be ended from here
}

// dial connects to who listens in a directory.
func dial(dir string) (_ *peer, err error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	// By the descriptor: paths of sockets are short.
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName)}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connect to %s: %w", filepath.Join(dir, socketName), err)
	}
	p := &peer{pidfd: -1}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && cred.Uid != uint32(os.Geteuid()) {
		err = errdefs.ErrPermissionDenied
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("look who listens in %s: %w", dir, err)
	}
	if p.channel, err = channel.Open(fd); err != nil {
		return nil, err
	}
	if cred.Pid > 0 {
		if pidfd, err := unix.PidfdOpen(int(cred.Pid), 0); err == nil {
			p.pid, p.pidfd = int(cred.Pid), pidfd
		}
	}
	// Only now is it sure that the number was that of who listens: it does so still.
	var one [1]byte
	if _, _, err := unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		p.close()
		return nil, fmt.Errorf("connect to %s: it has hung up: %w", filepath.Join(dir, socketName), io.EOF)
	}
	return p, nil
}

func (p *peer) close() {
	_ = p.channel.Close() // once
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
}

// ask sends a request and waits for an answer, for answerTime at most.
func (p *peer) ask(ctx context.Context, do verb) (answer, []int, error) {
	if err := p.channel.Send(request{Do: do, Version: version}); err != nil {
		return answer{}, nil, err
	}
	return p.next(ctx)
}

// next waits for an answer.
func (p *peer) next(ctx context.Context) (a answer, fds []int, err error) {
	var late atomic.Bool
	timer := time.AfterFunc(answerTime, func() {
		late.Store(true)
		p.channel.Close()
	})
	stop := context.AfterFunc(ctx, func() { p.channel.Close() })
	fds, err = p.channel.Receive(&a)
	timer.Stop()
	stop()
	switch {
	case err == nil:
		return a, fds, nil
	case late.Load():
		return a, nil, &MuteError{PID: p.pid, After: answerTime}
	case ctx.Err() != nil:
		return a, nil, context.Cause(ctx)
	}
	return a, nil, err
}

// end has the process let go and end, and ends it where it does not do so by itself.
func (p *peer) end() error {
	_ = p.channel.Send(request{Do: verbEnd, Version: version}) // where it fails, it has ended
	if p.pidfd < 0 {
		return nil
	}
	if p.ended(answerTime) {
		return nil
	}
	return p.kill()
}

// ended waits until the process has ended.
func (p *peer) ended(within time.Duration) bool {
	for until := time.Now().Add(within); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, max(0, int(time.Until(until).Milliseconds())))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// kill ends the process at once.
func (p *peer) kill() error {
	if p.pidfd < 0 {
		return nil
	}
	if err := unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", p.pid, err)
	}
	if !p.ended(answerTime) {
		return &MuteError{PID: p.pid, After: answerTime}
	}
	return nil
}

// deserted tells whether an error of [dial] or of asking means that nobody is there, and never will be.
func deserted(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.EOF)
}

// look asks whether memory is leased.
func look(ctx context.Context, dir string) (leased bool, err error) {
	p, err := dial(dir)
	if err != nil {
		return false, err
	}
	defer p.close()
	a, fds, err := p.ask(ctx, verbLook)
	channel.Close(fds)
	return a.Leased, err
}

// Lease is memory that was borrowed. Until it is used, who it was borrowed from has it too, and another may have it when it is closed.
type Lease struct {
	info  Info
	peer  *peer
	files []*os.File
}

// lease borrows memory; nil without an error: another has it.
func lease(ctx context.Context, i Info) (_ *Lease, err error) {
	p, err := dial(i.dir)
	if err != nil {
		return nil, err
	}
	l := &Lease{info: i, peer: p}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if err := p.channel.Send(request{Do: verbLease, Version: version}); err != nil {
		return nil, err
	}
	for len(l.files) < len(i.Pieces) {
		a, fds, err := p.next(ctx)
		var mute *MuteError
		if errors.As(err, &mute) {
			return nil, errors.Join(err, p.kill())
		}
		if err != nil {
			return nil, fmt.Errorf("borrow device memory: %w", err)
		}
		for _, fd := range fds {
			l.files = append(l.files, os.NewFile(uintptr(fd), "device memory"))
		}
		if a.Leased || a.Other {
			l.Close()
			return nil, nil
		}
		if len(fds) == 0 || a.Pieces != len(fds) || len(l.files) > len(i.Pieces) {
			return nil, fmt.Errorf("borrow device memory: %d descriptors for %d pieces: %w", len(l.files), len(i.Pieces), errdefs.ErrInternal)
		}
	}
	return l, nil
}

// Info says what it is.
func (l *Lease) Info() Info { return l.info }

// Files are the descriptors of all pieces, in order. They live until Close.
func (l *Lease) Files() []*os.File { return l.files }

// Use has nobody else have the memory any more: afterwards it is not what it was. A process that does not let go is ended.
func (l *Lease) Use(ctx context.Context) {
	if _, _, err := l.peer.ask(context.WithoutCancel(ctx), verbUse); err != nil {
		log.G(ctx).WithError(err).Warn("have device memory to itself")
		if err := l.peer.kill(); err != nil {
			log.G(ctx).WithError(err).Warn("have device memory to itself")
		}
	}
}

// Close gives the memory back, or, where it was used, lets go of what has no other owner.
func (l *Lease) Close() error {
	l.peer.close()
	for _, f := range l.files {
		f.Close() // it may be closed
	}
	return nil
}
