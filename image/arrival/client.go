package arrival

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Client asks a server of another process.
type Client struct {
	dir   *os.File // of the socket
	watch net.Conn

	mu   sync.Mutex
	idle []net.Conn // guarded by mu
	gone bool       // closed; guarded by mu
}

// Dial connects to the server that listens in dir. who is what this process does, for the errors of the server: see [Join].
func Dial(dir, who string) (*Client, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("reach the process that pulls: %w", err)
	}
	c := &Client{dir: d}
	if c.watch, err = c.dial(); err == nil {
		err = writeMessage(c.watch, message{Watch: who})
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("reach the process that pulls: %w", err)
	}
	return c, nil
}

// dial gives a connection. The path may be too long for a socket's address.
func (c *Client) dial() (net.Conn, error) {
	return net.Dial("unix", address(c.dir))
}

// address is that of the socket in a directory that is open.
func address(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName) }

// Read is a [Fetch].
func (c *Client) Read(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, why Why) error {
	if len(p) == 0 {
		return nil
	}
	conn, err := c.take()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	usable, err := c.read(conn, d, off, p, why)
	if !stop() || !usable {
		conn.Close()
		if cause := context.Cause(ctx); cause != nil && !usable {
			return cause
		}
		return err
	}
	c.put(conn)
	return err
}

// read asks, and tells whether the connection can be used again.
func (c *Client) read(conn net.Conn, d ocispec.Descriptor, off int64, p []byte, why Why) (usable bool, _ error) {
	plain := ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
	if err := writeMessage(conn, message{Read: &part{Segment: plain, Offset: off, Length: int64(len(p)), Why: why}}); err != nil {
		return false, errGone
	}
	m, err := readMessage(conn)
	switch {
	case err != nil:
		return false, errGone
	case m.Failed != nil:
		return true, m.Failed.Doing(doing)
	case m.Bytes != int64(len(p)):
		return false, fmt.Errorf("the process that pulls sends %d bytes instead of %d", m.Bytes, len(p))
	}
	if _, err := io.ReadFull(conn, p); err != nil {
		return false, errGone
	}
	return true, nil
}

func (c *Client) take() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, net.ErrClosed
	}
	if n := len(c.idle); n > 0 {
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return conn, nil
	}
	conn, err := c.dial()
	if err != nil {
		return nil, errGone
	}
	return conn, nil
}

func (c *Client) put(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		conn.Close()
		return
	}
	c.idle = append(c.idle, conn)
}

// Wait waits until all segments are in the store, or says why they will not be. It is called once.
func (c *Client) Wait() error {
	m, err := readMessage(c.watch)
	switch {
	case errors.Is(err, net.ErrClosed):
		return err
	case err != nil:
		return errGone
	case m.Failed != nil:
		return m.Failed.Doing(doing)
	case !m.Complete:
		return errors.New("a message of the process that pulls is not understood")
	}
	return nil
}

// End tells the server that nothing is needed any more, or what went wrong.
func (c *Client) End(err error) {
	m := message{Held: true}
	if err != nil {
		m = message{Failed: failed(err)}
	}
	_ = writeMessage(c.watch, m) // the server has ended, or will see that the connection has
}

// Close closes all connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for _, conn := range c.idle {
		conn.Close()
	}
	if c.watch != nil {
		c.watch.Close()
	}
	c.dir.Close()
}

// socketName is the server's in its directory.
const socketName = "arrival.sock"
