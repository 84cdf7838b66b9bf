package ring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// conn is one end of the socket.
type conn struct{ channel *channel.Channel }

// newConn works on a duplicate of the descriptor; the caller keeps its own.
func newConn(socket syscall.Conn) (*conn, error) {
	c, err := channel.Of(socket)
	if err != nil {
		return nil, fmt.Errorf("open a ring's socket: %w", err)
	}
	return &conn{c}, nil
}

// write sends a message, with a copy of file unless it is nil.
func (c *conn) write(m message, file *os.File) error {
	var fds []int
	if file != nil {
		fds = []int{int(file.Fd())}
	}
	data := m.encode()
	return gone(c.channel.SendBytes(data[:], fds...))
}

// read gives the next message and the file that came with it. It may be called again after os.ErrDeadlineExceeded.
func (c *conn) read() (message, *os.File, error) {
	data, fds, err := c.channel.ReceiveBytes()
	if err != nil {
		return message{}, nil, gone(err)
	}
	var m message
	if len(data) != messageSize || len(fds) > 1 {
		err = broken("a message of %d bytes with %d descriptors", len(data), len(fds))
	} else {
		m, err = decode([messageSize]byte(data))
	}
	if err != nil {
		channel.Close(fds)
		return message{}, nil, err
	}
	if len(fds) == 0 {
		return m, nil, nil
	}
	return m, os.NewFile(uintptr(fds[0]), "received"), nil
}

// gone makes an error of the socket one of the peer's.
func gone(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return &GoneError{}
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return &GoneError{Err: err}
	case errors.Is(err, io.ErrShortBuffer):
		return broken("a message is too long")
	}
	return err
}

// wait bounds the next read; 0 is no bound.
func (c *conn) wait(d time.Duration) { c.channel.Wait(d) }

// cutOff hangs up, whoever else has the descriptor, when ctx ends, until the function that it gives is called.
func (c *conn) cutOff(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, c.hangUp)
}

func (c *conn) hangUp() { _ = c.channel.CutOff() } // it may be done already

func (c *conn) close() { _ = c.channel.Close() } // once
