package channel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Listener is where another process reaches this one: a socket in a directory that only root may enter.
type Listener struct{ listener *net.UnixListener }

// network is that of the sockets: messages keep their borders.
const network = "unixpacket"

// SocketPath returns a path of a socket in a directory whose own path may be too long for a socket's address. The path holds until done is called. Who listens by it does not
// have the socket unlinked by it afterwards.
func SocketPath(dir, name string) (path string, done func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), func() { d.Close() }, nil
}

// Listen makes the socket. It stays when the listener is closed, and goes with the directory.
func Listen(dir, name string) (*Listener, error) {
	path, done, err := SocketPath(dir, name)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	defer done()
	l, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: path})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen in %s: %w", dir, err), l.Close())
	}
	return &Listener{l}, nil
}

// Accept waits for the next process. Where ctx ends before, the listener is closed, and the error is ctx's cause.
func (l *Listener) Accept(ctx context.Context) (*Channel, error) {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	conn, err := l.listener.AcceptUnix()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	defer conn.Close()
	return Of(conn)
}

// Close ends the listening.
func (l *Listener) Close() error { return l.listener.Close() }

// Dial reaches the process that listens, and gives its pid.
func Dial(dir, name string) (_ *Channel, pid int, err error) {
	path, done, err := SocketPath(dir, name)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Net: network, Name: path})
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	c, err := Of(conn)
	if err != nil {
		return nil, 0, err
	}
	if pid, err = c.Peer(); err != nil {
		return nil, 0, errors.Join(err, c.Close())
	}
	return c, pid, nil
}

// Peer returns the process that has made the other end.
func (c *Channel) Peer() (pid int, err error) {
	var peer *unix.Ucred
	var failed error
	if err := c.raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	return int(peer.Pid), nil
}
