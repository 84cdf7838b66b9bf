package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// Client is the command's side of a held checkpoint. Its methods are called in the order Frozen, Resume or Kill, Close;
// Close at any time lets the container go on.
type Client struct {
	// Options are sent by Frozen.
	Options Options
	// Version is that which is spoken; 0: [Newest], or an older one where the shim does not know it.
	Version int

	dir      string
	listener *channel.Listener
	greeted  chan struct{} // closed when the shim was greeted
	heard    chan message  // closed when nothing more comes
	failed   atomic.Pointer[failure.Error]
	why      error // nothing more comes; nil: the shim has hung up. To be read when heard is closed
	streams  map[stream]chan *net.UnixConn

	mu      sync.Mutex // guards channel and closed, since Close may come at any time
	channel *channel.Channel
	closed  bool
}

// Listen makes the socket in dir, which is then given to the shim as CRIU's work directory, and the file where the shim leaves an error.
func Listen(dir string) (*Client, error) {
	if err := failure.Expect(dir); err != nil {
		return nil, err
	}
	l, err := channel.Listen(dir, socketName)
	if err != nil {
		return nil, fmt.Errorf("wait for the shim: %w", err)
	}
	c := &Client{dir: dir, listener: l, greeted: make(chan struct{}), heard: make(chan message, 4), streams: make(map[stream]chan *net.UnixConn)}
	for _, s := range []stream{pagesStream, devicesStream} {
		c.streams[s] = make(chan *net.UnixConn, 1)
	}
	return c, nil
}

// Frozen waits until the container is dumped; it stands still from before then until [Client.Resume] or [Client.Kill]. io.EOF: the shim has hung up, and [Client.Left] has
// the reason.
func (c *Client) Frozen(ctx context.Context) (Dumped, error) {
	shim, err := c.listener.Accept(ctx)
	if err != nil {
		return Dumped{}, fmt.Errorf("wait for the shim: %w", err)
	}
	if !c.keep(shim) {
		return Dumped{}, errors.Join(fmt.Errorf("wait for the shim: %w", net.ErrClosed), shim.Close())
	}
	go c.listen(shim)
	if err := shim.Send(c.greeting()); err != nil {
		return Dumped{}, fmt.Errorf("greet the shim: %w", err)
	}
	close(c.greeted)
	m, err := c.receive(ctx)
	if err != nil {
		return Dumped{}, fmt.Errorf("wait for the dump: %w", err)
	}
	if m.Dumped == nil {
		return Dumped{}, fmt.Errorf("wait for the dump: unexpected message from the shim: it is not dumped: %w", errdefs.ErrInternal)
	}
	return *m.Dumped, nil
}

func (c *Client) greeting() message {
	m := message{Version: cmp.Or(c.Version, Newest), Options: c.Options}
	if c.Version == 0 && ranges {
		m.Oldest = Previous
	}
	return m
}

// listen hears what the shim says, until it hangs up, and takes the connections that it makes.
func (c *Client) listen(shim *channel.Channel) {
	defer close(c.heard)
	for {
		var m message
		fds, err := shim.Receive(&m)
		if err == nil && m.Stream != "" {
			err = c.take(m.Stream, fds)
			c.why = err
		} else {
			channel.Close(fds)
		}
		switch {
		case err != nil:
			return
		case m.Failed != nil:
			c.failed.Store(m.Failed)
		case m.Stream == "":
			c.heard <- m
		}
	}
}

// take takes a connection that the shim has made. It owns the descriptors.
func (c *Client) take(s stream, fds []int) error {
	streams := c.streams[s]
	if streams == nil || len(fds) != 1 || len(streams) == cap(streams) {
		channel.Close(fds)
		return fmt.Errorf("unexpected connection from the shim for %.20q: %w", s, errdefs.ErrInternal)
	}
	f := os.NewFile(uintptr(fds[0]), string(s))
	defer f.Close()
	conn, err := net.FileConn(f)
	own, ok := conn.(*net.UnixConn)
	if err == nil && !ok {
		err = errors.Join(errdefs.ErrInternal, conn.Close())
	}
	if err != nil {
		return fmt.Errorf("take a connection from the shim: %w", err)
	}
	streams <- own
	return nil
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

// Left returns the error that the shim has left; nil if there is none. It is there before the shim hangs up, and may be another when containerd has answered.
func (c *Client) Left() *failure.Error {
	var e failure.Error
	if !failure.Find(c.dir, &e) {
		return c.failed.Load()
	}
	return &e
}

// keep makes shim the one that Close closes; false: it is closed already.
func (c *Client) keep(shim *channel.Channel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channel = shim
	return !c.closed
}

// Pages waits for the connection over which CRIU sends pages; there may never be one. It is called beside Frozen.
func (c *Client) Pages(ctx context.Context) (*net.UnixConn, error) { return c.stream(ctx, pagesStream) }

// Devices waits for the connection over which device memory comes; there may never be one. It is called beside Frozen. What
// comes is described by the record that is beside the images then.
func (c *Client) Devices(ctx context.Context) (*net.UnixConn, error) {
	return c.stream(ctx, devicesStream)
}

func (c *Client) stream(ctx context.Context, s stream) (*net.UnixConn, error) {
	select {
	case conn := <-c.streams[s]:
		return conn, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %s: %w", s, context.Cause(ctx))
	}
}

// Resume lets the container run on.
func (c *Client) Resume(ctx context.Context) (Released, error) { return c.release(ctx, Resume) }

// Kill ends the container.
func (c *Client) Kill(ctx context.Context) (Released, error) { return c.release(ctx, Kill) }

func (c *Client) release(ctx context.Context, d Decision) (Released, error) {
	if c.channel == nil {
		return Released{}, fmt.Errorf("%s the container: it is not frozen: %w", d, errdefs.ErrFailedPrecondition)
	}
	if err := c.channel.Send(message{Decision: d}); err != nil {
		return Released{}, fmt.Errorf("%s the container: %w", d, err)
	}
	m, err := c.receive(ctx)
	if err != nil {
		return Released{}, fmt.Errorf("%s the container: %w", d, err)
	}
	if m.Released == nil {
		return Released{}, fmt.Errorf("%s the container: unexpected message from the shim: it is not released: %w", d, errdefs.ErrInternal)
	}
	return *m.Released, nil
}

// receive waits for the next message.
func (c *Client) receive(ctx context.Context) (message, error) {
	select {
	case m, ok := <-c.heard:
		if !ok {
			return message{}, cmp.Or(c.why, io.EOF)
		}
		return m, nil
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	}
}

// HangUp lets a container that is still frozen go on, and waits until the shim has nothing more to say. Nothing else waits for a message.
func (c *Client) HangUp(ctx context.Context) error {
	c.mu.Lock()
	shim := c.channel
	c.mu.Unlock()
	if shim != nil && shim.HangUp() == nil {
		_ = c.listener.Close() // Close does so again
		for {
			if _, err := c.receive(ctx); err != nil {
				break
			}
		}
	}
	return c.Close()
}

// Close hangs up: a container that is still frozen goes on. It may be called again.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	err := c.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	if c.channel != nil {
		err = errors.Join(err, c.channel.Close())
	}
	for _, streams := range c.streams {
		for len(streams) > 0 {
			_ = (<-streams).Close() // it was not wanted
		}
	}
	return err
}
