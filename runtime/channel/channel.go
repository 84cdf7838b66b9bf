// Package channel has two processes of cryo's speak: messages of JSON over a socket pair, with files.
package channel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Channel is one end of the socket pair. Send may be called from several goroutines, Receive from one.
type Channel struct {
	file *os.File
	raw  syscall.RawConn
	send sync.Mutex
	data []byte // of receiving
}

// Limits of a message.
const (
	MaxMessage = 64 << 10 // bytes
	MaxFiles   = 128      // SCM_MAX_FD is 253
)

// Pair gives both ends. The other is for a process that is to be started.
func Pair() (own *Channel, other *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	if own, err = Open(pair[0]); err != nil {
		return nil, nil, errors.Join(err, unix.Close(pair[1]))
	}
	return own, os.NewFile(uintptr(pair[1]), "channel"), nil
}

// Open owns the descriptor.
func Open(fd int) (*Channel, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("open a channel: %w", err), unix.Close(fd))
	}
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "channel")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a channel: %w", err), file.Close())
	}
	return &Channel{file: file, raw: raw}, nil
}

// Send sends a message with copies of files.
func (c *Channel) Send(message any, files ...*os.File) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > MaxMessage || len(files) > MaxFiles {
		return fmt.Errorf("send to the other process: %d bytes and %d files: %w", len(data), len(files), unix.EMSGSIZE)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	c.send.Lock()
	defer c.send.Unlock()
	var sent error
	err = c.raw.Write(func(own uintptr) bool {
		for {
			sent = unix.Sendmsg(int(own), data, rights, nil, unix.MSG_NOSIGNAL)
			if !errors.Is(sent, unix.EINTR) {
				return !errors.Is(sent, unix.EAGAIN)
			}
		}
	})
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("send to the other process: %w", err)
	}
	return nil
}

// Receive gives the next message and the files that came with it. io.EOF: the other end is closed.
func (c *Channel) Receive(message any) ([]*os.File, error) {
	data, files, err := c.receive()
	if err == nil {
		err = json.Unmarshal(data, message)
	}
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		Close(files)
		return nil, fmt.Errorf("receive from the other process: %w", err)
	}
	return files, nil
}

func (c *Channel) receive() ([]byte, []*os.File, error) {
	if c.data == nil {
		c.data = make([]byte, MaxMessage)
	}
	oob := make([]byte, unix.CmsgSpace(4*MaxFiles))
	var n, oobn, flags int
	var received error
	err := c.raw.Read(func(own uintptr) bool {
		for {
			n, oobn, flags, _, received = unix.Recvmsg(int(own), c.data, oob, unix.MSG_CMSG_CLOEXEC)
			if !errors.Is(received, unix.EINTR) {
				return !errors.Is(received, unix.EAGAIN)
			}
		}
	})
	switch err = errors.Join(err, received); {
	case errors.Is(err, unix.ECONNRESET), err == nil && n == 0:
		return nil, nil, io.EOF
	case err != nil:
		return nil, nil, err
	}
	files, err := rights(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = io.ErrShortBuffer
	}
	if err != nil {
		Close(files)
		return nil, nil, err
	}
	return c.data[:n], files, nil
}

// rights takes the descriptors out of control messages.
func rights(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control messages: %w", err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, fmt.Errorf("control messages: %w", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// Close closes files.
func Close(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Close closes this end.
func (c *Channel) Close() error { return c.file.Close() }
