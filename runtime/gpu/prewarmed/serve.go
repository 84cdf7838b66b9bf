package prewarmed

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// Command is the argument that makes a program the process.
const Command = "keep-device-memory"

// Name is what ps calls the process.
const Name = "cryo-prewarmed"

// beginDescriptor is the socket of who starts it.
const beginDescriptor = 3

// keep is what the process has.
type keep struct {
	mu     sync.Mutex
	dir    string // guarded by mu
	fds    []int  // guarded by mu; nil: let go of
	leased bool   // guarded by mu
	over   chan struct{}
}

// Serve is the process: it takes over descriptors on descriptor 3, and keeps them until it is told to let go. Who starts it dies early:
// it ends.
func Serve() error {
	_ = os.WriteFile("/proc/self/comm", []byte(Name), 0) // for ps; it was exe
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	c, err := channel.Open(beginDescriptor)
	if err != nil {
		return err
	}
	defer c.Close()
	return serve(c)
}

func serve(c *channel.Channel) error {
	k := &keep{over: make(chan struct{})}
	defer k.letGo()
	var b begin
	fds, err := c.Receive(&b)
	k.fds = fds
	if err != nil {
		return err
	}
	k.dir = b.Dir
	for wanted := b.Pieces; len(k.fds) < wanted; {
		fds, err := c.Receive(&b)
		k.fds = append(k.fds, fds...)
		if err == nil && len(fds) == 0 {
			err = fmt.Errorf("take over device memory: a message without descriptors: %w", errdefs.ErrInvalidArgument)
		}
		if err != nil {
			return err
		}
	}
	listening, err := listen(k.dir)
	if err != nil {
		return err
	}
	defer unix.Close(listening)
	if err := c.Send(answer{Done: true}); err != nil {
		return err
	}
	if _, err := c.Receive(&b); err != nil || !b.Kept {
		return errors.Join(err, fmt.Errorf("keep device memory: who began has ended: %w", errdefs.ErrAborted))
	}
	k.mu.Lock()
	k.dir = b.Dir
	k.mu.Unlock()
	go k.accept(listening)
	if err := c.Send(answer{Done: true}); err != nil {
		return err
	}
	_ = c.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM)
	select {
	case <-signals:
		k.letGo()
	case <-k.over:
	}
	return nil
}

// listen makes the socket in a directory.
func listen(dir string) (int, error) {
	d, err := openDir(dir)
	if err != nil {
		return -1, err
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket: %w", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName)}); err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen at %s: %w", filepath.Join(dir, socketName), err)
	}
	return fd, nil
}

// accept serves whoever is of this process's user.
func (k *keep) accept(listening int) {
	for {
		fd, _, err := unix.Accept4(listening, unix.SOCK_CLOEXEC)
		if err != nil {
			continue // ECONNABORTED, EMFILE, EINTR
		}
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || cred.Uid != uint32(os.Geteuid()) {
			unix.Close(fd)
			continue
		}
		c, err := channel.Open(fd)
		if err != nil {
			continue
		}
		go k.serve(c)
	}
}

// serve carries out what one client asks for.
func (k *keep) serve(c *channel.Channel) {
	defer c.Close()
	mine := false
	defer func() {
		if mine {
			k.release()
		}
	}()
	for {
		var r request
		fds, err := c.Receive(&r)
		channel.Close(fds) // it sends none
		if err != nil {
			return
		}
		switch {
		case r.Do == verbEnd: // of any version
			k.finish(c)
			return
		case r.Version != version:
			err = c.Send(answer{Other: true})
		case r.Do == verbLook:
			k.mu.Lock()
			leased := k.leased
			k.mu.Unlock()
			err = c.Send(answer{Leased: leased})
		case r.Do == verbLease && !mine:
			fds := k.lease()
			if fds == nil {
				err = c.Send(answer{Leased: true})
				break
			}
			mine = true
			for some := range slices.Chunk(fds, batch) {
				if err = c.Send(answer{Pieces: len(some)}, some...); err != nil {
					break
				}
			}
		case r.Do == verbUse && mine:
			k.finish(c)
			return
		default:
			err = c.Send(answer{Other: true})
		}
		if err != nil {
			return
		}
	}
}

// lease gives the descriptors to one who asks, and to no other until they are released; nil: another has them.
func (k *keep) lease() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leased || k.fds == nil {
		return nil
	}
	k.leased = true
	return k.fds
}

func (k *keep) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leased = false
}

// finish lets go, says so, and has the process end.
func (k *keep) finish(c *channel.Channel) {
	if k.letGo() {
		_ = c.Send(answer{Done: true}) // who has hung up sees the end
		close(k.over)
	}
}

// letGo closes all descriptors, and removes the directory so that nobody takes it for more; false: that was done already.
func (k *keep) letGo() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fds == nil {
		return false
	}
	channel.Close(k.fds)
	k.fds = nil
	if k.dir != "" {
		_ = os.RemoveAll(k.dir) // else it is swept
	}
	return true
}
