package registry

import (
	"errors"
	"net"
	"os"
	"time"
)

// leastMoved is how many bytes are more than next to nothing.
const leastMoved = 4 << 10

// stalledError ends a transfer on which nothing, or next to nothing, moves any more. It is a net.Error, so it counts as a timeout.
type stalledError struct{ idle time.Duration }

func (e *stalledError) Error() string   { return "no data, or next to none, for " + e.idle.String() }
func (e *stalledError) Timeout() bool   { return true }
func (e *stalledError) Temporary() bool { return true }

// conn is a connection that fails where a read or a write waits for too long. A reader that is sent less than [leastMoved] bytes at a time waits on.
type conn struct {
	net.Conn
	answer time.Duration // how long reading may wait, from the last byte on that was written
	idle   time.Duration // how long writing may wait
	moved  int           // bytes that were read since the deadline was set
}

// Read implements [net.Conn]. It is for one goroutine, as in net/http.
func (c *conn) Read(p []byte) (int, error) {
	if c.moved == 0 {
		if err := c.SetReadDeadline(time.Now().Add(c.answer)); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if c.moved += n; c.moved >= leastMoved {
		c.moved = 0
	}
	return n, stalled(err, c.answer)
}

// Write implements [net.Conn]. What is written may be a request, whose answer is waited for from then on.
func (c *conn) Write(p []byte) (int, error) {
	now := time.Now()
	if err := errors.Join(c.SetWriteDeadline(now.Add(c.idle)), c.SetReadDeadline(now.Add(c.answer))); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	return n, stalled(err, c.idle)
}

func stalled(err error, after time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &stalledError{after}
	}
	return err
}
