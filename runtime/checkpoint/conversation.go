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
)

// maxConversation bounds what is read of a peer, bytes.
const maxConversation = 1 << 16

// Conversation is the shim's side of a held checkpoint.
type Conversation struct {
	conn net.Conn
	in   *json.Decoder
	out  *json.Encoder
}

var _ Holder = (*Conversation)(nil)

// Join finds the command that listens in CRIU's work directory dir. Nobody listens, for a stock client: nil, no error.
func Join(ctx context.Context, dir string) (*Conversation, error) {
	if dir == "" {
		return nil, nil
	}
	if _, err := os.Lstat(socketPath(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socketPath(dir))
	if err != nil {
		return nil, fmt.Errorf("reach the cryo command: %w: %w", err, errdefs.ErrUnavailable)
	}
	c := &Conversation{conn: conn, in: json.NewDecoder(io.LimitReader(conn, maxConversation)), out: json.NewEncoder(conn)}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	greeting, err := receive(c.in)
	if err == nil && greeting.Version != protocolVersion {
		err = fmt.Errorf("the cryo command speaks version %d, the shim %d: %w", greeting.Version, protocolVersion, errdefs.ErrInvalidArgument)
		_ = c.out.Encode(message{Error: err.Error()})
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("greet the cryo command: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	return c, nil
}

// Dumped implements [Holder]. A command that is gone is an error, and so the container resumes.
func (c *Conversation) Dumped(ctx context.Context, d Dumped) (Decision, error) {
	if err := c.out.Encode(message{Dumped: &d}); err != nil {
		return "", fmt.Errorf("tell the cryo command: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	defer stop()
	m, err := receive(c.in)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("wait for the cryo command: %w: %w", err, errdefs.ErrAborted)
	}
	return m.Decision, nil
}

// End tells the command how it went and hangs up.
func (c *Conversation) End(r Result, err error) {
	defer c.conn.Close()
	_ = c.conn.SetDeadline(time.Now().Add(10 * time.Second))
	m := message{Released: &Released{FreezeSeconds: r.Freeze.Seconds(), Killed: r.Killed}}
	if err != nil {
		m = message{Error: err.Error()}
	}
	_ = c.out.Encode(m) // nobody may be listening any more
}
