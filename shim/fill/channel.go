package fill

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// message is what the two processes tell each other. One of its members is there.
type message struct {
	// The shim's.
	Order    *Order `json:"order,omitempty"`    // the first
	Task     *task  `json:"task,omitempty"`     // with its userfaultfd
	Restored bool   `json:"restored,omitempty"` // all tasks run
	// The daemon's.
	Ready  bool    `json:"ready,omitempty"`  // all that is needed is open
	Hold   int     `json:"hold,omitempty"`   // a number, with the userfaultfd of a child that was forked
	Drop   int     `json:"drop,omitempty"`   // the number of a task or child that needs nothing any more
	Result *Result `json:"result,omitempty"` // nothing is missing any more; the last
	Failed *failed `json:"failed,omitempty"` // the last
}

// task is a process that CRIU has restored.
type task struct {
	ID   int `json:"id"`
	PID  int `json:"pid"`            // in the images
	Host int `json:"host,omitempty"` // here
}

// Result says what was done.
type Result struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"` // since all tasks run
	Peak    int64   `json:"peak"`    // memory of the process that did it, bytes
}

// failed is an error on its way from the daemon.
type failed struct {
	Reason string `json:"reason"`
	Hint   string `json:"hint,omitempty"`
	Damage bool   `json:"damage,omitempty"` // of kind DataLoss
}

// channel is one end of the socket pair.
type channel struct {
	mu   sync.Mutex // of sending
	file *os.File
	raw  func(func(fd uintptr) (done bool), bool) error
}

// maxMessage bounds a message; the longest are orders and reasons.
const maxMessage = 64 << 10

// newPair gives both ends. The other is for a process that is to be started.
func newPair() (own *channel, other *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	if own, err = newChannel(pair[0]); err != nil {
		return nil, nil, errors.Join(err, unix.Close(pair[1]))
	}
	return own, os.NewFile(uintptr(pair[1]), "channel"), nil
}

// newChannel owns the descriptor.
func newChannel(fd int) (*channel, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("open a channel: %w", err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "channel")
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a channel: %w", err), file.Close())
	}
	return &channel{file: file, raw: func(f func(uintptr) bool, write bool) error {
		if write {
			return conn.Write(f)
		}
		return conn.Read(f)
	}}, nil
}

// send sends a message, with a copy of the descriptor fd unless it is negative.
func (c *channel) send(m message, fd int) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var sent error
	err = c.raw(func(own uintptr) bool {
		for {
			sent = unix.Sendmsg(int(own), data, rights, nil, unix.MSG_NOSIGNAL)
			if !errors.Is(sent, unix.EINTR) {
				return !errors.Is(sent, unix.EAGAIN)
			}
		}
	}, true)
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("send to the other process: %w", err)
	}
	return nil
}

// receive gives the next message, and the descriptor that came with it, or -1. io.EOF: the other end is closed.
func (c *channel) receive() (m message, fd int, err error) {
	data, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	var n, oobn, flags int
	var received error
	err = c.raw(func(own uintptr) bool {
		for {
			n, oobn, flags, _, received = unix.Recvmsg(int(own), data, oob, unix.MSG_CMSG_CLOEXEC)
			if !errors.Is(received, unix.EINTR) {
				return !errors.Is(received, unix.EAGAIN)
			}
		}
	}, false)
	switch err = errors.Join(err, received); {
	case errors.Is(err, unix.ECONNRESET), err == nil && n == 0:
		return m, -1, io.EOF
	case err != nil:
		return m, -1, fmt.Errorf("receive from the other process: %w", err)
	}
	fd = -1
	if oobn > 0 {
		if fd, err = right(oob[:oobn]); err != nil {
			return m, -1, err
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = io.ErrShortBuffer
	} else {
		err = json.Unmarshal(data[:n], &m)
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return m, -1, fmt.Errorf("receive from the other process: %w", err)
	}
	return m, fd, nil
}

// right takes the one descriptor out of a control message.
func right(oob []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err == nil && len(messages) == 1 {
		var fds []int
		if fds, err = unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, fmt.Errorf("receive from the other process: control messages: %w", err)
}

func (c *channel) close() { c.file.Close() }
