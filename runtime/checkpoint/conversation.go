package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/runc"
)

// maxGPUTimeout is the longest that is accepted, seconds.
const maxGPUTimeout = 86400

// Conversation is the shim's side of a held checkpoint. That of a stock client, which is not held, is nil.
type Conversation struct {
	// Options are the command's.
	Options Options

	version int
	dir     string // where the command finds an error
	channel *channel.Channel
	decided chan Decision

	released bool // the command knows that the container runs on
}

var _ Holder = (*Conversation)(nil)

// Held reports whether a command listens in CRIU's work directory dir, or has: a checkpoint for it ends when it hangs up, and is none of
// containerd's, which may be restarted meanwhile.
func Held(dir string) bool {
	if dir == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(dir, socketName))
	return !errors.Is(err, fs.ErrNotExist)
}

// Join finds the command that listens in CRIU's work directory dir, and gives a context that ends when the command
// hangs up: no process waits for the dump then. A stock client does not listen: nil and ctx itself, no error.
func Join(ctx context.Context, dir string) (*Conversation, context.Context, error) {
	if !Held(dir) {
		return nil, ctx, nil
	}
	command, _, err := channel.Dial(dir, socketName)
	if err != nil {
		return nil, ctx, fmt.Errorf("reach the cryo command: %w: %w", err, errdefs.ErrUnavailable)
	}
	c := &Conversation{dir: dir, channel: command, decided: make(chan Decision, 1)}
	if err := c.greet(); err != nil {
		err = fmt.Errorf("greet the cryo command: %w", err)
		if c.version <= 4 {
			c.tell(message{Failed: failure.Of(err)})
		}
		_ = errors.Join(Leave(dir, err), command.Close()) // err says more
		return nil, ctx, err
	}
	ctx, hungUp := context.WithCancelCause(ctx)
	go c.listen(hungUp)
	return c, ctx, nil
}

// greetTime is how long the command may take to say what it wants.
const greetTime = 10 * time.Second

func (c *Conversation) greet() error {
	late := time.AfterFunc(greetTime, func() { _ = c.channel.Close() })
	var greeting message
	fds, err := c.channel.Receive(&greeting)
	if !late.Stop() {
		return fmt.Errorf("it has said nothing for %s: %w", greetTime, context.DeadlineExceeded)
	}
	if err != nil {
		return err
	}
	channel.Close(fds) // it sends none
	c.version = min(greeting.Version, Newest)
	if c.version != greeting.Version && (!ranges || greeting.Oldest == 0 || greeting.Oldest > Newest) || c.version < Previous {
		return OtherVersion(fmt.Sprintf("it speaks version %d, the shim %d", greeting.Version, Newest))
	}
	if t := greeting.GPUTimeout; t < 0 || t > maxGPUTimeout {
		return fmt.Errorf("a GPU timeout of %g seconds: %w", t, errdefs.ErrInvalidArgument)
	}
	c.Options = greeting.Options
	return nil
}

// pagesBuffer is how much CRIU may have sent that the command has not read yet, bytes.
const pagesBuffer = 4 << 20

// Asked are the command's options.
func (c *Conversation) Asked() (o Options) {
	if c != nil {
		o = c.Options
	}
	return o
}

// Pages returns the socket over which CRIU shall send pages; nil if the command wants them in files. The caller closes it.
func (c *Conversation) Pages() (*os.File, error) {
	if !c.Asked().Pages {
		return nil, nil
	}
	f, err := c.connect(pagesStream, unix.SOCK_STREAM)
	if err == nil {
		// More than a user may have; without it, the dump is only slower.
		_ = unix.SetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, pagesBuffer)
	}
	return f, err
}

// Devices returns the connection, of the type SOCK_SEQPACKET, over which the command takes device memory; nil if it does not want it.
// The command reads the record beside the images, which must be there by now, to know what comes: the pieces of all processes, in
// the order of the record. The caller closes the file.
func (c *Conversation) Devices() (*os.File, error) {
	if !c.Options.Devices {
		return nil, nil
	}
	return c.connect(devicesStream, unix.SOCK_SEQPACKET)
}

// connect makes a connection of some type, and hands the command its end.
func (c *Conversation) connect(s stream, kind int) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	err = c.channel.Send(message{Stream: s}, pair[1])
	_ = unix.Close(pair[1])
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach the cryo command for %s: %w: %w", s, err, errdefs.ErrUnavailable), unix.Close(pair[0]))
	}
	return os.NewFile(uintptr(pair[0]), string(s)), nil
}

// listen hears the command's one decision, and that it hangs up.
func (c *Conversation) listen(hungUp context.CancelCauseFunc) {
	var m message
	fds, err := c.channel.Receive(&m)
	channel.Close(fds) // it sends none
	if err == nil {
		c.decided <- m.Decision
		fds, err = c.channel.Receive(&m)
		channel.Close(fds)
	}
	hungUp(fmt.Errorf("the cryo command is gone: %w: %w", err, errdefs.ErrAborted))
}

// Dumped implements [Holder]. A command that is gone is an error, and so the container resumes.
func (c *Conversation) Dumped(ctx context.Context, d Dumped) (Decision, error) {
	if err := c.channel.Send(message{Dumped: &d}); err != nil {
		return "", fmt.Errorf("tell the cryo command: %w", err)
	}
	select {
	case decision := <-c.decided:
		return decision, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Progress implements [Holder].
func (c *Conversation) Progress() string {
	pid, err := c.channel.Peer()
	if err != nil {
		return time.Now().String() // it is not known
	}
	return runc.CoarseProgress(pid)
}

// Released implements [Holder]. [Conversation.End] must follow when it is known that the container runs as before, and all device memory has gone.
func (c *Conversation) Released(r Result) {
	c.released = true
	c.tell(message{Released: released(r)})
}

// End tells the command how it went and hangs up.
func (c *Conversation) End(r Result, err error) {
	if c == nil {
		return
	}
	defer c.channel.Close()
	switch {
	case err != nil:
		if c.version <= 4 {
			c.tell(message{Failed: failure.Of(err)})
		}
		_ = Leave(c.dir, err) // what becomes of it afterwards takes its place
	case !c.released:
		c.tell(message{Released: released(r)})
	}
}

func released(r Result) *Released {
	return &Released{FreezeSeconds: r.Freeze.Seconds(), LoadSeconds: r.Load.Seconds(), Killed: r.Killed, DevicesPending: r.Pending}
}

// tell sends a message, which the command may not hear any more.
func (c *Conversation) tell(m message) { _ = c.channel.Send(m) }
