package registry

import (
	"io"
	"net"

	"github.com/cryo-project/cryo/image/direct"
)

// fileConn has the kernel send files (sendfile(2)), which net/http cannot do for bodies that are watched, and what is not in the page
// cache read past it. Connections with TLS do not come here.
type fileConn struct{ *net.TCPConn }

// sendingFiles gives c, with that ability if it can have it.
func sendingFiles(c net.Conn) net.Conn {
	if tcp, ok := c.(*net.TCPConn); ok {
		return fileConn{tcp}
	}
	return c
}

// sender is a file of a store: a [*direct.Reader] or a [segment.Verified].
type sender interface {
	SendTo(c direct.Conn, n int64) (int64, error)
}

// ReadFrom implements [io.ReaderFrom]. It knows how net/http hands over the body of a request with a length; whatever else comes
// is copied.
func (c fileConn) ReadFrom(r io.Reader) (sent int64, err error) {
	body, ok := r.(*io.LimitedReader)
	if !ok {
		return c.TCPConn.ReadFrom(r)
	}
	w, ok := body.R.(*watched)
	if !ok {
		return c.TCPConn.ReadFrom(r)
	}
	f, ok := w.ReadCloser.(sender)
	if !ok {
		return c.TCPConn.ReadFrom(r)
	}
	for body.N > 0 {
		// Small pieces: one must not take as long as a stall.
		n, err := f.SendTo(c.TCPConn, min(body.N, maxPiece))
		body.N -= n
		sent += n
		w.moved(n)
		if n == 0 || err != nil {
			return sent, err
		}
	}
	return sent, nil
}
