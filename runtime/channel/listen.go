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

// in opens a directory, and gives the address of a socket in it. The directory's own path may be too long for one. It is closed when the address has been used.
func in(dir, name string) (*os.File, *net.UnixAddr, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	return d, &net.UnixAddr{Net: network, Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)}, nil
}

// Listen makes the socket. It stays when the listener is closed, and goes with the directory.
func Listen(dir, name string) (*Listener, error) {
	d, address, err := in(dir, name)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	defer d.Close()
	l, err := net.ListenUnix(network, address)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false) // by a descriptor that is another file's by then
	if err := os.Chmod(address.Name, 0o600); err != nil {
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
	return of(conn)
}

// Close ends the listening.
func (l *Listener) Close() error { return l.listener.Close() }

// Dial reaches the process that listens, and gives its pid.
func Dial(dir, name string) (_ *Channel, pid int, err error) {
	d, address, err := in(dir, name)
	if err != nil {
		return nil, 0, err
	}
	defer d.Close()
	conn, err := net.DialUnix(network, nil, address)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	c, err := of(conn)
	if err != nil {
		return nil, 0, err
	}
	var peer *unix.Ucred
	var failed error
	if err = c.raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err == nil {
		err = failed
	}
	if err != nil {
		return nil, 0, errors.Join(err, c.Close())
	}
	return c, int(peer.Pid), nil
}

// of makes a connection, which remains the caller's, a channel.
func of(conn *net.UnixConn) (*Channel, error) {
	file, err := conn.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return Open(fd)
}
