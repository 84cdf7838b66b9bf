package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// conn is one end of the socket.
type conn struct{ *channel.Channel }

// newConn works on a duplicate of the descriptor; the caller keeps its own.
func newConn(socket syscall.Conn) (conn, error) {
	c, err := channel.Of(socket)
	if err != nil {
		return conn{}, fmt.Errorf("open a ring's socket: %w", err)
	}
	return conn{c}, nil
}

// write sends a message, with copies of descriptors.
func (c conn) write(m message, fds ...int) error { return gone(c.Send(m, fds...)) }

// read returns the next message, which has no descriptors. It may be called again after os.ErrDeadlineExceeded.
func (c conn) read() (m message, err error) {
	m, files, err := c.readFiles()
	if len(files) > 0 {
		channel.Close(files)
		err = broken("a file that was not asked for")
	}
	return m, err
}

func (c conn) readFiles() (m message, files []int, err error) {
	files, err = c.Receive(&m)
	return m, files, gone(err)
}

// gone makes an error of the socket one of the peer's.
func gone(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return hungUp(nil)
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return hungUp(err)
	case errors.Is(err, io.ErrShortBuffer):
		return broken("a message is too long")
	}
	return err
}

// cutOff hangs up, whoever else has the descriptor, when ctx ends, until the function that it gives is called.
func (c conn) cutOff(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, c.hangUp)
}

func (c conn) hangUp() { _ = c.CutOff() } // it may be done already

// fileOf is the file among descriptors, of which there is one; nil: there is another number of them, and all are closed.
func fileOf(fds []int) *os.File {
	if len(fds) != 1 {
		channel.Close(fds)
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "received")
}
