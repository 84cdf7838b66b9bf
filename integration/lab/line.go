package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Line stands in front of a registry, counts the bytes that go through, and can be slow.
type Line struct {
	Address  string
	Sent     atomic.Int64 // to the registry
	Received atomic.Int64 // from it
	Pause    atomic.Int64 // after each piece of at most 64 KiB, of each connection by itself, nanoseconds
	Rate     atomic.Int64 // of all that comes from the registry, bytes a second; 0: nothing bounds it

	listener net.Listener
	mu       sync.Mutex // held by whose piece is on the line
	free     time.Time  // when the line is; guarded by mu
}

// Line is one to a registry on the lab's network, until Close or the end of ctx.
func (l *Lab) Line(ctx context.Context, r *Registry) (*Line, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(l.Address(), "0"))
	if err != nil {
		return nil, fmt.Errorf("listen in front of registry %s: %w", r.Name, err)
	}
	line := &Line{Address: listener.Addr().String(), listener: listener}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go line.serve(ctx, client, r.Address)
		}
	}()
	return line, nil
}

// Close takes no more connections.
func (l *Line) Close() error { return l.listener.Close() }

// serve passes one connection on; an end of either side ends it.
func (l *Line) serve(ctx context.Context, client net.Conn, registry string) {
	defer client.Close()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", registry)
	if err != nil {
		return // the client sees the end
	}
	if l.Rate.Load() > 0 {
		_ = client.(*net.TCPConn).SetWriteBuffer(pieceSlow) // what is in there is counted, and has not come
	}
	go func() {
		l.pass(server, client, &l.Sent, func(int) {})
		_ = server.Close()
	}()
	l.pass(client, server, &l.Received, l.take)
}

// How much goes over the line at a time: less where it is slow, so that nobody waits long for another's.
const (
	pieceSlow = 16 << 10
	pieceFast = 64 << 10
	slowRate  = 50 << 20
)

// pass copies until either side ends.
func (l *Line) pass(to io.Writer, from io.Reader, count *atomic.Int64, take func(n int)) {
	buf := make([]byte, pieceFast)
	for {
		piece := buf
		if rate := l.Rate.Load(); rate > 0 && rate < slowRate {
			piece = buf[:pieceSlow]
		}
		n, err := from.Read(piece)
		take(n)
		if _, werr := to.Write(piece[:n]); errors.Join(err, werr) != nil {
			return
		}
		count.Add(int64(n))
		time.Sleep(time.Duration(l.Pause.Load()))
	}
}

// lag is how far behind the line may be: sleeping is not exact.
const lag = 5 * time.Millisecond

// take waits until so many bytes have gone over the line. Connections take turns.
func (l *Line) take(n int) {
	rate := l.Rate.Load()
	if rate == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if least := time.Now().Add(-lag); l.free.Before(least) {
		l.free = least
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	time.Sleep(time.Until(l.free))
}
