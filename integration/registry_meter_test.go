package integration

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// meter stands in front of a registry, counts the bytes that go through, and can be slow.
type meter struct {
	address  string
	sent     atomic.Int64 // to the registry
	received atomic.Int64 // from it
	pause    atomic.Int64 // after each piece of at most 64 KiB, nanoseconds
}

// newMeter is a meter on the lab's network, in front of a registry.
func newMeter(t *testing.T, r *lab.Registry) *meter {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	m := &meter{address: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			go m.serve(t.Context(), client, r.Address)
		}
	}()
	return m
}

// serve passes one connection on.
func (m *meter) serve(ctx context.Context, client net.Conn, address string) {
	defer client.Close()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	go func() {
		m.pass(server, client, &m.sent)
		_ = server.Close()
	}()
	m.pass(client, server, &m.received)
}

// pass copies until either side ends.
func (m *meter) pass(to io.Writer, from io.Reader, count *atomic.Int64) {
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if _, werr := to.Write(piece[:n]); errors.Join(err, werr) != nil {
			return
		}
		count.Add(int64(n))
		time.Sleep(time.Duration(m.pause.Load()))
	}
}
