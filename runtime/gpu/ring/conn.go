package ring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// conn is one end of the socket.
type conn struct {
	file *os.File
	raw  syscall.RawConn
	send sync.Mutex // of writing

	// Of reading, which one goroutine does.
	have [messageSize]byte
	n    int // bytes of have
}

// newConn works on a duplicate of the descriptor; the caller keeps its own.
func newConn(socket syscall.Conn) (*conn, error) {
	from, err := socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("open a ring's socket: %w", err)
	}
	var fd int
	var dup error
	if err := from.Control(func(own uintptr) { fd, dup = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, fmt.Errorf("open a ring's socket: %w", err)
	}
	if dup == nil {
		if dup = unix.SetNonblock(fd, true); dup != nil {
			unix.Close(fd)
		}
	}
	if dup != nil {
		return nil, fmt.Errorf("open a ring's socket: %w", dup)
	}
	c := &conn{file: os.NewFile(uintptr(fd), "ring")}
	if c.raw, err = c.file.SyscallConn(); err != nil {
		c.file.Close()
		return nil, fmt.Errorf("open a ring's socket: %w", err)
	}
	return c, nil
}

// write sends a message, with a copy of file unless it is nil.
func (c *conn) write(m message, file *os.File) error {
	data := m.encode()
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	c.send.Lock()
	defer c.send.Unlock()
	for rest := data[:]; len(rest) > 0; rights = nil {
		var n int
		var sent error
		err := c.raw.Write(func(fd uintptr) bool {
			for {
				n, sent = unix.SendmsgN(int(fd), rest, rights, nil, unix.MSG_NOSIGNAL)
				if !errors.Is(sent, unix.EINTR) {
					return !errors.Is(sent, unix.EAGAIN)
				}
			}
		})
		if err = errors.Join(err, sent); err != nil {
			return gone(err)
		}
		rest = rest[n:]
	}
	return nil
}

// read gives the next message and the file that came with it. It may be called again after os.ErrDeadlineExceeded.
func (c *conn) read() (message, *os.File, error) {
	var file *os.File
	oob := make([]byte, unix.CmsgSpace(4))
	for c.n < messageSize {
		var n, oobn, flags int
		var received error
		err := c.raw.Read(func(fd uintptr) bool {
			for {
				n, oobn, flags, _, received = unix.Recvmsg(int(fd), c.have[c.n:], oob, unix.MSG_CMSG_CLOEXEC)
				if !errors.Is(received, unix.EINTR) {
					return !errors.Is(received, unix.EAGAIN)
				}
			}
		})
		err = errors.Join(err, received)
		if err == nil && oobn > 0 {
			var another *os.File
			if another, err = right(oob[:oobn]); err == nil {
				if file != nil {
					file.Close()
				}
				file = another
			}
		}
		switch {
		case err != nil:
		case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
			err = broken("a message is too long")
		case n == 0:
			err = io.EOF
		}
		if err != nil {
			if file != nil {
				file.Close()
			}
			return message{}, nil, gone(err)
		}
		c.n += n
	}
	c.n = 0
	m, err := decode(c.have)
	if err != nil && file != nil {
		file.Close()
		file = nil
	}
	return m, file, err
}

// right takes the one descriptor out of control messages. There is room for two.
func right(oob []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	var all []int
	for _, m := range messages {
		fds, wrong := unix.ParseUnixRights(&m)
		all, err = append(all, fds...), errors.Join(err, wrong)
	}
	if err == nil && len(all) == 1 {
		return os.NewFile(uintptr(all[0]), "received"), nil
	}
	for _, fd := range all {
		_ = unix.Close(fd)
	}
	return nil, broken("%d descriptors with a message (%v)", len(all), err)
}

// gone makes an error of the socket one of the peer's.
func gone(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return &GoneError{}
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return &GoneError{Err: err}
	}
	return err
}

// wait bounds the next read; 0 is no bound.
func (c *conn) wait(d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = c.file.SetReadDeadline(at) // sockets have deadlines
}

// cutOff hangs up, whoever else has the descriptor, when ctx ends, until the function that it gives is called.
func (c *conn) cutOff(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, c.hangUp)
}

func (c *conn) hangUp() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

func (c *conn) close() { c.file.Close() }
