package arrival

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// verified is a segment all of which has its digest. The file is passed itself: what has the same name may be another.
type verified struct {
	digest digest.Digest
	file   *os.File // nil: it is in the store
}

// Verified tells the clients of a segment that is verified and may not be in the store yet, and passes f, which has it open for reading; nil: it is there. The server closes f.
func (s *Server) Verified(d ocispec.Descriptor, f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		if f != nil {
			f.Close()
		}
		return
	}
	s.verified = append(s.verified, verified{d.Digest, f})
	s.change.Broadcast()
}

// list tells a client of segments that are verified, until it hangs up or the server does.
func (s *Server) list(conn *net.UnixConn) {
	for n := 0; ; n++ {
		s.mu.Lock()
		for !s.closed && n == len(s.verified) {
			s.change.Wait()
		}
		if s.closed {
			s.mu.Unlock()
			return
		}
		v := s.verified[n]
		s.mu.Unlock()
		if v.tell(conn) != nil { // it has ended, which who watches it sees
			return
		}
	}
}

// tell writes the message. The file stays open until the server closes.
func (v verified) tell(conn *net.UnixConn) error {
	var b bytes.Buffer
	if err := writeMessage(&b, message{Verified: v.digest}); err != nil {
		return err
	}
	var rights []byte
	if v.file != nil {
		rights = unix.UnixRights(int(v.file.Fd()))
	}
	n, _, err := conn.WriteMsgUnix(b.Bytes(), rights, nil)
	if err == nil && n < b.Len() {
		_, err = conn.Write(b.Bytes()[n:])
	}
	return err
}

// verified waits for the next segment that the server tells of.
func (c *Client) verified(conn *net.UnixConn) (v verified, err error) {
	r := &rightsReader{conn: conn}
	m, err := readMessage(r)
	if err == nil && m.Verified.Validate() != nil {
		err = errors.New("a message of the process that pulls is not understood")
	}
	if err != nil {
		if r.file != nil {
			r.file.Close()
		}
		return v, err
	}
	return verified{m.Verified, r.file}, nil
}

// rightsReader reads one message, and the file that comes with it.
type rightsReader struct {
	conn *net.UnixConn
	file *os.File
}

func (r *rightsReader) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n, some, _, _, err := r.conn.ReadMsgUnix(p, oob)
	if some > 0 {
		messages, _ := unix.ParseSocketControlMessage(oob[:some]) // the kernel's
		for _, m := range messages {
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				if r.file != nil {
					r.file.Close()
				}
				r.file = os.NewFile(uintptr(fd), "segment")
			}
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Whole has the source give segments as wholes: nothing of one is there before the other process has verified all of it, and its frames need no
// digests then, as far as that holds for what is in the store. What is read before is fetched as ever.
func (c *Coming) Whole() error {
	conn, err := c.client.dial()
	if err != nil {
		return errGone
	}
	if err := writeMessage(conn, message{List: true}); err != nil {
		conn.Close()
		return errGone
	}
	c.Source.whole, c.list = true, conn
	go func() {
		defer conn.Close()
		for {
			v, err := c.client.verified(conn.(*net.UnixConn))
			if err == nil {
				err = c.came(v)
			}
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
					c.client.End(err) // nobody waits for what does not come
				}
				return // at its end who waits for that of the pull hears why
			}
		}
	}()
	return nil
}

// came takes what is verified.
func (s *Source) came(v verified) error {
	s.mu.Lock()
	s.verified = append(s.verified, v)
	arriving := slices.Clone(s.arriving)
	s.mu.Unlock()
	for _, g := range arriving {
		if err := g.take(v); err != nil {
			return err
		}
	}
	return nil
}

// known takes what was verified before the segment was opened.
func (g *segment) known(all []verified) error {
	for _, v := range all {
		if err := g.take(v); err != nil {
			return err
		}
	}
	return nil
}

// take opens the segment where it is what is verified.
func (g *segment) take(v verified) error {
	if v.digest != g.d.Digest || g.whole.Load() != nil {
		return nil
	}
	if v.file == nil {
		return g.hold(g.source.ctx)
	}
	own, err := unix.FcntlInt(v.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open segment %s: %w", g.d.Digest, err)
	}
	rc, err := g.source.store.Passed(g.d, os.NewFile(uintptr(own), v.file.Name()))
	if err != nil {
		return err
	}
	return g.have(rc)
}

// drop closes the files that were passed.
func (s *Source) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.verified {
		if v.file != nil {
			v.file.Close()
		}
	}
	s.verified = nil
}
