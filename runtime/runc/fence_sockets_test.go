package runc

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestSocketsUnacknowledged counts what a peer has not acknowledged, since the fence keeps it from the peer, and finds a connection that a peer has not answered yet.
func TestSocketsUnacknowledged(t *testing.T) {
	a, b := places(t)
	l := b.listen("tcp", "10.9.0.2:7000")
	client := a.dial("tcp", "10.9.0.2:7000")
	accept(t, l)
	f, err := b.network.Fence(b.sockets())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := client.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if s := a.sockets(); s.Unacknowledged != 1 {
		t.Errorf("%d segments are unacknowledged", s.Unacknowledged)
	}
	to := netip.MustParseAddrPort("10.9.0.2:7000")
	a.ask(to.String())
	if s := a.sockets(); len(s.Connections) != 2 || s.Connections[0].Remote != to || s.Connections[1].Remote != to {
		t.Errorf("connections are %v", s.Connections)
	}
	client.Close()
	if s := a.sockets(); len(s.Closing) != 1 || s.Closing[0] != of(client) || len(s.Connections) != 2 {
		t.Errorf("after its end, connections are %+v", s)
	}
}

// TestSocketsWaiting counts the connections that no process has accepted, and that are about to be made.
func TestSocketsWaiting(t *testing.T) {
	a, b := places(t)
	l := b.listen("tcp", "[::]:7000")
	b.listen("tcp4", "10.9.0.2:7001")
	want := []Connection{}
	for _, to := range []string{"10.9.0.2:7000", "[fd09::2]:7000", "10.9.0.2:7001"} {
		c := of(a.dial("tcp", to))
		want = append(want, Connection{Local: c.Remote, Remote: c.Local})
	}
	order := func(all []Connection) []string {
		var texts []string
		for _, c := range all {
			texts = append(texts, fmt.Sprint(c))
		}
		slices.Sort(texts)
		return texts
	}
	wait := func(what string, as func(Sockets) bool) {
		t.Helper()
		for deadline := time.Now().Add(aliveTime); !as(b.sockets()); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s; sockets are %+v", what, b.sockets())
			}
		}
	}
	wait("three connections do not wait", func(s Sockets) bool { return slices.Equal(order(s.Waiting), order(want)) && len(s.Connections) == 0 })
	accept(t, l)
	accept(t, l)
	wait("one connection does not wait", func(s Sockets) bool { return slices.Equal(s.Waiting, want[2:]) && len(s.Connections) == 2 })
	if s, err := b.network.Sockets([]int{b.pid}); err != nil || len(s.Connections)+len(s.Waiting)+len(s.Listeners) > 0 {
		t.Errorf("a process without sockets has %+v, %v", s, err)
	}
	in(t, a.pid, "nft 'add table inet test; add chain inet test input { type filter hook input priority 0; }; add rule inet test input tcp sport 7000 drop'")
	a.ask("10.9.0.2:7000")
	wait("no connection is about to be made", func(s Sockets) bool { return len(s.Arriving) == 1 && s.Arriving[0].Local == want[0].Local })
}
