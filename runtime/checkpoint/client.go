package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// Client is the command's side of a held checkpoint. Its methods are called in the order Frozen, Resume or Kill, Close;
// Close at any time lets the container go on.
type Client struct {
	// Options are sent by Frozen.
	Options Options

	dir      string
	listener *net.UnixListener
	devices  *net.UnixListener
	rounds   *net.UnixListener
	greeted  chan struct{} // closed when the shim was greeted
	in       *json.Decoder
	out      *json.Encoder

	mu     sync.Mutex // guards conn and closed, since Close may come at any time
	conn   net.Conn
	closed bool
}

// Listen makes the socket in dir, which is then given to the shim as CRIU's work directory, and the file where the shim leaves an error.
func Listen(dir string) (*Client, error) {
	if err := failure.Expect(dir); err != nil {
		return nil, err
	}
	// Who finds the last socket may look for the others.
	devices, err := listenAt("unixpacket", devicesPath(dir))
	if err != nil {
		return nil, err
	}
	rounds, err := listenAt("unix", roundPath(dir))
	if err != nil {
		devices.Close()
		return nil, err
	}
	l, err := listenAt("unix", socketPath(dir))
	if err != nil {
		devices.Close()
		rounds.Close()
		return nil, err
	}
	return &Client{dir: dir, listener: l, devices: devices, rounds: rounds, greeted: make(chan struct{})}, nil
}

func listenAt(network, path string) (*net.UnixListener, error) {
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("listen for the shim: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen for the shim: %w", err)
	}
	return l, nil
}

// Frozen waits until the container is dumped; it stands still from before then until [Client.Resume] or [Client.Kill].
func (c *Client) Frozen(ctx context.Context) (Dumped, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.listener.SetDeadline(time.Now()) })
	conn, err := c.listener.Accept()
	stop()
	if err != nil {
		return Dumped{}, c.cause(ctx, "wait for the shim", err)
	}
	if !c.keep(conn) {
		return Dumped{}, errors.Join(fmt.Errorf("wait for the shim: %w", net.ErrClosed), conn.Close())
	}
	c.in, c.out = json.NewDecoder(io.LimitReader(conn, maxConversation)), json.NewEncoder(conn)
	if err := c.out.Encode(message{Version: protocolVersion, Options: c.Options}); err != nil {
		return Dumped{}, fmt.Errorf("greet the shim: %w", err)
	}
	close(c.greeted)
	m, err := c.receive(ctx)
	if err != nil {
		return Dumped{}, c.cause(ctx, "wait for the dump", err)
	}
	if m.Dumped == nil {
		return Dumped{}, fmt.Errorf("wait for the dump: unexpected message from the shim: it is neither dumped nor an error: %w", errdefs.ErrInternal)
	}
	return *m.Dumped, nil
}

// Greeted waits a while for a shim to begin with the checkpoint.
func (c *Client) Greeted(within time.Duration) bool {
	if within == 0 {
		select {
		case <-c.greeted:
			return true
		default:
			return false
		}
	}
	select {
	case <-c.greeted:
		return true
	case <-time.After(within):
		return false
	}
}

// Left gives the error with which the shim has answered containerd; nil if there is none. It is there before containerd's answer.
func (c *Client) Left() *failure.Error {
	var e failure.Error
	if !failure.Find(c.dir, &e) {
		return nil
	}
	return &e
}

// keep makes conn the one that Close closes; false: it is closed already.
func (c *Client) keep(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	return !c.closed
}

// Pages waits for the connection over which CRIU sends pages; there may never be one. It is called beside Frozen.
func (c *Client) Pages(ctx context.Context) (net.Conn, error) {
	select {
	case <-c.greeted: // who comes first is the shim, to talk
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for pages: %w", context.Cause(ctx))
	}
	defer context.AfterFunc(ctx, func() { _ = c.listener.SetDeadline(time.Now()) })()
	conn, err := c.listener.Accept()
	if err != nil {
		return nil, c.cause(ctx, "wait for pages", err)
	}
	return conn, nil
}

// Devices waits for the connection over which device memory comes; there may never be one. It is called beside Frozen. What
// comes is described by the record that is beside the images then.
func (c *Client) Devices(ctx context.Context) (*net.UnixConn, error) {
	defer context.AfterFunc(ctx, func() { _ = c.devices.SetDeadline(time.Now()) })()
	conn, err := c.devices.AcceptUnix()
	if err != nil {
		return nil, c.cause(ctx, "wait for device memory", err)
	}
	return conn, nil
}

// Round waits for the connection over which CRIU sends the pages of the next round of a pre-dump; there may never be one. It is called
// beside Frozen.
func (c *Client) Round(ctx context.Context) (net.Conn, error) {
	defer context.AfterFunc(ctx, func() { _ = c.rounds.SetDeadline(time.Now()) })()
	conn, err := c.rounds.Accept()
	if err != nil {
		return nil, c.cause(ctx, "wait for a round", err)
	}
	return conn, nil
}

// Resume lets the container run on.
func (c *Client) Resume(ctx context.Context) (Released, error) { return c.release(ctx, Resume) }

// Kill ends the container.
func (c *Client) Kill(ctx context.Context) (Released, error) { return c.release(ctx, Kill) }

func (c *Client) release(ctx context.Context, d Decision) (Released, error) {
	if c.conn == nil {
		return Released{}, fmt.Errorf("%s the container: it is not frozen: %w", d, errdefs.ErrFailedPrecondition)
	}
	if err := c.out.Encode(message{Decision: d}); err != nil {
		return Released{}, fmt.Errorf("%s the container: %w", d, err)
	}
	m, err := c.receive(ctx)
	if err != nil {
		return Released{}, c.cause(ctx, string(d)+" the container", err)
	}
	if m.Released == nil {
		return Released{}, fmt.Errorf("%s the container: unexpected message from the shim: it is neither released nor an error: %w", d, errdefs.ErrInternal)
	}
	return *m.Released, nil
}

func (c *Client) receive(ctx context.Context) (message, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Now()) })
	defer stop()
	return receive(c.in)
}

func (c *Client) cause(ctx context.Context, what string, err error) error {
	if errors.As(err, new(*failure.Error)) {
		return err // it says itself what was being done
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// deaf closes what connections come to.
func (c *Client) deaf() error {
	var errs []error
	for _, l := range []*net.UnixListener{c.listener, c.devices, c.rounds} {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// HangUp lets a container that is still frozen go on, and waits for what the shim says of that: a [*failure.Error], or nil. Nothing else waits for a message.
func (c *Client) HangUp(ctx context.Context) error {
	c.mu.Lock()
	conn, _ := c.conn.(*net.UnixConn)
	c.mu.Unlock()
	if conn == nil || c.in == nil || conn.CloseWrite() != nil {
		return c.Close()
	}
	_ = c.deaf()                          // Close does so again
	_ = conn.SetReadDeadline(time.Time{}) // an end of waiting that has been heard of
	in := io.MultiReader(c.in.Buffered(), conn)
	c.in = json.NewDecoder(io.LimitReader(in, maxConversation))
	for {
		if _, err := c.receive(ctx); err != nil {
			closed := c.Close()
			if told := (*failure.Error)(nil); errors.As(err, &told) {
				return told
			}
			return closed
		}
	}
}

// Close hangs up: a container that is still frozen goes on. It may be called again.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	err := c.deaf()
	if c.conn != nil {
		err = errors.Join(err, c.conn.Close())
	}
	return err
}
