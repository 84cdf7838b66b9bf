package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// maxConversation bounds what is read of a peer, bytes.
const maxConversation = 1 << 16

// maxGPUTimeout is the longest that is accepted, seconds.
const maxGPUTimeout = 86400

// MaxRounds is how many rounds of a pre-dump are accepted. What is left after some is what is written all the time.
const MaxRounds = 16

// Conversation is the shim's side of a held checkpoint.
type Conversation struct {
	// Options are the command's.
	Options Options

	dir     string // in which the command listens
	conn    net.Conn
	out     *json.Encoder
	decided chan Decision

	released bool // the command knows that the container runs on
}

var _ Holder = (*Conversation)(nil)

// Held tells whether a command listens in CRIU's work directory dir, or has: a checkpoint for it ends when it hangs up, and is none of
// containerd's, which may be restarted meanwhile.
func Held(dir string) bool {
	if dir == "" {
		return false
	}
	_, err := os.Lstat(socketPath(dir))
	return !errors.Is(err, fs.ErrNotExist)
}

// Join finds the command that listens in CRIU's work directory dir, and gives a context that ends when the command
// hangs up: nobody waits for the dump then. Nobody listens, for a stock client: nil and ctx itself, no error.
func Join(ctx context.Context, dir string) (*Conversation, context.Context, error) {
	if !Held(dir) {
		return nil, ctx, nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socketPath(dir))
	if err != nil {
		return nil, ctx, fmt.Errorf("reach the cryo command: %w: %w", err, errdefs.ErrUnavailable)
	}
	c := &Conversation{dir: dir, conn: conn, out: json.NewEncoder(conn), decided: make(chan Decision, 1)}
	in := json.NewDecoder(io.LimitReader(conn, maxConversation))
	if err := c.greet(in); err != nil {
		conn.Close()
		return nil, ctx, fmt.Errorf("greet the cryo command: %w", err)
	}
	ctx, hungUp := context.WithCancelCause(ctx)
	go c.listen(in, hungUp)
	return c, ctx, nil
}

func (c *Conversation) greet(in *json.Decoder) error {
	_ = c.conn.SetDeadline(time.Now().Add(10 * time.Second))
	defer func() { _ = c.conn.SetDeadline(time.Time{}) }()
	greeting, err := receive(in)
	if err != nil {
		return err
	}
	if greeting.Version != protocolVersion {
		err := fmt.Errorf("it speaks version %d, the shim %d: %w", greeting.Version, protocolVersion, errdefs.ErrInvalidArgument)
		_ = c.out.Encode(message{Failed: told(err)})
		return err
	}
	if t := greeting.GPUTimeout; t < 0 || t > maxGPUTimeout {
		return fmt.Errorf("a GPU timeout of %g seconds: %w", t, errdefs.ErrInvalidArgument)
	}
	if n := greeting.PreDump; n < 0 || n > MaxRounds {
		return fmt.Errorf("%d rounds of a pre-dump: %w", n, errdefs.ErrInvalidArgument)
	}
	c.Options = greeting.Options
	return nil
}

// pagesBuffer is how much CRIU may have sent that the command has not read yet, bytes.
const pagesBuffer = 4 << 20

// Pages gives the socket over which CRIU shall send pages; nil if the command wants them in files. The caller closes it.
func (c *Conversation) Pages(ctx context.Context) (*os.File, error) {
	if !c.Options.Pages {
		return nil, nil
	}
	return pagesTo(ctx, socketPath(c.dir))
}

// Round gives the socket over which CRIU shall send the pages of the next round of a pre-dump. The caller closes it.
func (c *Conversation) Round(ctx context.Context) (*os.File, error) {
	return pagesTo(ctx, roundPath(c.dir))
}

func pagesTo(ctx context.Context, path string) (*os.File, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("reach the cryo command for pages: %w: %w", err, errdefs.ErrUnavailable)
	}
	defer conn.Close()
	f, err := conn.(*net.UnixConn).File()
	if err != nil {
		return nil, fmt.Errorf("reach the cryo command for pages: %w", err)
	}
	// More than a user may have; without it, the dump is only slower.
	_ = unix.SetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, pagesBuffer)
	return f, nil
}

// Devices gives the connection, of the type SOCK_SEQPACKET, over which the command takes device memory; nil if it does not want it.
// The command reads the record beside the images, which must be there by now, to know what comes: the pieces of all processes, in
// the order of the record. The caller closes the file.
func (c *Conversation) Devices(ctx context.Context) (*os.File, error) {
	if !c.Options.Devices {
		return nil, nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", devicesPath(c.dir))
	if err != nil {
		return nil, fmt.Errorf("reach the cryo command for device memory: %w: %w", err, errdefs.ErrUnavailable)
	}
	defer conn.Close()
	f, err := conn.(*net.UnixConn).File()
	if err != nil {
		return nil, fmt.Errorf("reach the cryo command for device memory: %w", err)
	}
	return f, nil
}

// listen hears the command's one decision, and that it hangs up.
func (c *Conversation) listen(in *json.Decoder, hungUp context.CancelCauseFunc) {
	m, err := receive(in)
	if err == nil {
		c.decided <- m.Decision
		_, err = receive(in)
	}
	hungUp(fmt.Errorf("the cryo command is gone: %w: %w", err, errdefs.ErrAborted))
}

// Dumped implements [Holder]. A command that is gone is an error, and so the container resumes.
func (c *Conversation) Dumped(ctx context.Context, d Dumped) (Decision, error) {
	if err := c.out.Encode(message{Dumped: &d}); err != nil {
		return "", fmt.Errorf("tell the cryo command: %w", err)
	}
	select {
	case decision := <-c.decided:
		return decision, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Released tells the command that the container runs on while its device memory still goes over its connection. [Conversation.End]
// must follow when all has gone.
func (c *Conversation) Released(r Result) {
	c.released = true
	m := released(r)
	m.DevicesPending = true
	c.tell(message{Released: m})
}

// End tells the command how it went and hangs up.
func (c *Conversation) End(r Result, err error) {
	defer c.conn.Close()
	switch {
	case err != nil:
		c.tell(message{Failed: told(err)})
	case !c.released:
		c.tell(message{Released: released(r)})
	}
}

func released(r Result) *Released {
	return &Released{FreezeSeconds: r.Freeze.Seconds(), LoadSeconds: r.Load.Seconds(), Killed: r.Killed}
}

// tell sends a message, though nobody may be listening any more.
func (c *Conversation) tell(m message) {
	_ = c.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_ = c.out.Encode(m)
}
