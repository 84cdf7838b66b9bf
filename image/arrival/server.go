package arrival

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
)

// Server answers the clients of a process that pulls a snapshot.
type Server struct {
	fetch    Fetch
	listener *net.UnixListener
	ctx      context.Context
	cancel   context.CancelCauseFunc // of all that is being fetched

	mu       sync.Mutex
	change   *sync.Cond            // of what follows
	conns    map[net.Conn]struct{} // guarded by mu
	watching map[net.Conn]struct{} // those that have not said that they need nothing any more; guarded by mu
	verified []verified            // guarded by mu
	complete bool                  // guarded by mu
	closed   bool                  // guarded by mu
	err      error                 // why it cannot become complete; guarded by mu
	failed   chan struct{}         // closed when err is there
}

// Serve listens in dir, which nobody else may enter. ctx ends it, as Fail does.
func Serve(ctx context.Context, dir string, fetch Fetch) (*Server, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("listen for who needs segments: %w", err)
	}
	defer d.Close()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: address(d)})
	if err != nil {
		return nil, fmt.Errorf("listen for who needs segments: %w", err)
	}
	listener.SetUnlinkOnClose(false) // by a descriptor that is another file's by then; the directory goes as a whole
	s := &Server{fetch: fetch, listener: listener, conns: make(map[net.Conn]struct{}), watching: make(map[net.Conn]struct{}), failed: make(chan struct{})}
	s.change = sync.NewCond(&s.mu)
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(s.ctx, func() { s.Fail(context.Cause(s.ctx)) })
	go s.accept()
	return s, nil
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		s.conns[conn] = struct{}{}
		s.mu.Unlock()
		go func() {
			s.serve(conn)
			conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
		}()
	}
}

// serve answers one client until it has no more to ask.
func (s *Server) serve(conn net.Conn) {
	var buf []byte
	for {
		m, err := readMessage(conn)
		switch {
		case err == nil && m.Watch != "":
			s.watch(conn, m.Watch)
			return
		case err == nil && m.List:
			s.list(conn.(*net.UnixConn))
			return
		case err != nil || m.Read == nil:
			return
		}
		if int64(cap(buf)) < m.Read.Length {
			buf = make([]byte, m.Read.Length)
		}
		buf = buf[:m.Read.Length]
		err = s.Err()
		if err == nil {
			err = s.fetch(s.ctx, m.Read.Segment, m.Read.Offset, buf, m.Read.Why)
		}
		if err != nil {
			s.Fail(err) // which it is no more once nobody needs anything
			if writeMessage(conn, message{Failed: failed(cmp.Or(s.Err(), err))}) != nil {
				return
			}
			continue
		}
		if writeMessage(conn, message{Bytes: m.Read.Length}) != nil {
			return
		}
		if _, err := conn.Write(buf); err != nil {
			return
		}
	}
}

// watch waits for what a client says in the end, and tells it what comes of the pull.
func (s *Server) watch(conn net.Conn, does string) {
	s.mu.Lock()
	s.watching[conn] = struct{}{}
	complete, err := s.complete, s.err
	s.mu.Unlock()
	if complete || err != nil { // it comes late
		tell(conn, err)
	}
	m, err := readMessage(conn)
	switch {
	case err == nil && m.Held:
	case err == nil && m.Failed != nil:
		s.Fail(m.Failed.Doing(doing))
	default:
		s.Fail(&LeftError{does})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watching, conn)
	s.change.Broadcast()
}

// tell tells a client that watches.
func tell(conn net.Conn, err error) {
	m := message{Complete: true}
	if err != nil {
		m = message{Failed: failed(err)}
	}
	_ = writeMessage(conn, m) // it has ended, which who reads from it sees
}

// Fail says that the segments will not come; the first reason is told to all.
func (s *Server) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.complete && len(s.watching) == 0 {
		return
	}
	s.err = err
	close(s.failed)
	s.cancel(err)
	for conn := range s.watching {
		tell(conn, err)
	}
	s.change.Broadcast()
}

// Err says why it has failed, if it has.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Failed is closed when it has failed.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Complete says that all segments are in the store, and waits until no client needs this process any more. It returns why it has
// failed, if it has.
func (s *Server) Complete() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = true
	if s.err == nil {
		for conn := range s.watching {
			tell(conn, nil)
		}
	}
	for s.err == nil && len(s.watching) > 0 {
		s.change.Wait()
	}
	return s.err
}

// Alone waits until no client needs anything of this process, as long as ctx allows.
func (s *Server) Alone(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.change.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil && len(s.watching) > 0 {
		s.change.Wait()
	}
}

// errClosed is what remaining clients are told by Close.
var errClosed = errors.New("the process that pulls has ended")

// Close hangs up.
func (s *Server) Close() {
	s.cancel(errClosed)
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.Close()
	}
	for _, v := range s.verified {
		if v.file != nil {
			v.file.Close()
		}
	}
	s.closed, s.verified = true, nil
	s.change.Broadcast()
}
