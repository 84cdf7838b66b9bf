// Package channel has two processes of cryo's speak: messages of JSON over a socket pair, with descriptors.
package channel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Channel is one end of the socket pair. Send may be called from several goroutines, Receive from one.
type Channel struct {
	file *os.File
	raw  syscall.RawConn
	send sync.Mutex
	data []byte // of receiving
}

// Limits of a message. What is longer than MaxMessage travels in a file in memory, of which the message has the descriptor.
const (
	MaxMessage     = 64 << 10 // bytes
	MaxFile        = 64 << 20 // bytes
	MaxDescriptors = 128      // the kernel's SCM_MAX_FD is 253
)

// inFile is the message whose text is in the file that comes first with it. No JSON begins so.
const inFile = 'f'

// Pair returns both ends. The other is for a process that is to be started.
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

// Of returns a channel on a copy of a socket, which remains the caller's.
func Of(socket syscall.Conn) (*Channel, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	var fd int
	var failed error
	if err = raw.Control(func(own uintptr) { fd, failed = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err == nil {
		err = failed
	}
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	return Open(fd)
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

// Send sends a message with copies of descriptors.
func (c *Channel) Send(message any, fds ...int) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > MaxFile || len(fds) > MaxDescriptors {
		return fmt.Errorf("send to the other process: %d bytes and %d descriptors: %w", len(data), len(fds), unix.EMSGSIZE)
	}
	if len(data) > MaxMessage {
		file, err := fileOf(data)
		if err != nil {
			return fmt.Errorf("send to the other process: %w", err)
		}
		defer file.Close()
		data, fds = []byte{inFile}, append([]int{int(file.Fd())}, fds...)
	}
	return c.SendBytes(data, fds...)
}

// SendWithin is Send to a process that may not receive for a while: after the time d it returns [os.ErrDeadlineExceeded], and the message is dropped. Where it is used, all sending is.
func (c *Channel) SendWithin(d time.Duration, message any) error {
	_ = c.file.SetWriteDeadline(time.Now().Add(d)) // sockets have deadlines
	return c.Send(message)
}

// SendBytes sends a message of bytes, [MaxMessage] at most, that are no JSON.
func (c *Channel) SendBytes(data []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	c.send.Lock()
	defer c.send.Unlock()
	var sent error
	err := c.raw.Write(func(own uintptr) bool {
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

// fileOf returns a file in memory with this text.
func fileOf(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("message", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "message")
	if _, err := file.Write(data); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// readFile returns the text of such a file, and closes it.
func readFile(fd int) ([]byte, error) {
	file := os.NewFile(uintptr(fd), "message")
	defer file.Close()
	data, err := io.ReadAll(io.NewSectionReader(file, 0, MaxFile+1))
	if err == nil && len(data) > MaxFile {
		err = io.ErrShortBuffer
	}
	return data, err
}

// Receive returns the next message and the descriptors that came with it, which are the caller's to close. io.EOF: the other end is
// closed. After [os.ErrDeadlineExceeded] it may be called again. What is no such message is an error of kind InvalidArgument.
func (c *Channel) Receive(message any) ([]int, error) {
	data, fds, err := c.ReceiveBytes()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err == nil && len(data) == 1 && data[0] == inFile && len(fds) > 0 {
		data, err = readFile(fds[0])
		fds = fds[1:]
	}
	if err == nil {
		if err = json.Unmarshal(data, message); err != nil {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	if err != nil {
		Close(fds)
		return nil, fmt.Errorf("receive from the other process: %w", err)
	}
	return fds, nil
}

// ReceiveBytes returns the bytes of a message, which are valid until the next. One that is too long gives [io.ErrShortBuffer].
func (c *Channel) ReceiveBytes() ([]byte, []int, error) {
	if c.data == nil {
		c.data = make([]byte, MaxMessage)
	}
	oob := make([]byte, unix.CmsgSpace(4*MaxDescriptors))
	var n, oobn, flags int
	var received error
	reset := false
	err := c.raw.Read(func(own uintptr) bool {
		for {
			n, oobn, flags, _, received = unix.Recvmsg(int(own), c.data, oob, unix.MSG_CMSG_CLOEXEC)
			if errors.Is(received, unix.ECONNRESET) && !reset {
				reset = true // the other process has closed its end with messages unread. The kernel returns this error once, and then that process' last messages
				continue
			}
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
	fds, err := rights(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = io.ErrShortBuffer
	}
	if err != nil {
		Close(fds)
		return nil, nil, err
	}
	return c.data[:n], fds, nil
}

// rights takes the descriptors out of control messages.
func rights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control messages: %w", err)
	}
	for _, m := range messages {
		some, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fds, fmt.Errorf("control messages: %w", err)
		}
		fds = append(fds, some...)
	}
	return fds, nil
}

// Strict reads exactly one JSON value without unknown fields. Its errors are of kind InvalidArgument.
func Strict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("decode message: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("decode message: more than one value: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// Close closes descriptors.
func Close(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Wait bounds the next Receive; 0 is no bound.
func (c *Channel) Wait(d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = c.file.SetReadDeadline(at) // sockets have deadlines
}

// Close closes this end.
func (c *Channel) Close() error { return c.file.Close() }

// HangUp tells the other end that nothing more is sent: it receives [io.EOF]. What the other end sends is received as before.
func (c *Channel) HangUp() error { return c.shutdown(unix.SHUT_WR) }

// CutOff ends both directions, whoever else has the socket.
func (c *Channel) CutOff() error { return c.shutdown(unix.SHUT_RDWR) }

func (c *Channel) shutdown(how int) error {
	var err error
	if failed := c.raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), how) }); failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("hang up a channel: %w", err)
	}
	return nil
}
