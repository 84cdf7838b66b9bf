package integration

import "testing"

// TestInsidePipes has data in flight in pipes, FIFOs and socket pairs, and an epoll, an eventfd and a timer.
func TestInsidePipes(t *testing.T) {
	travel(t, journey{}, "pipes")
}

// TestInsideUnixSockets has listening and connected unix sockets, by path and abstract, and a datagram not yet read.
func TestInsideUnixSockets(t *testing.T) {
	travel(t, journey{}, "unixsock")
}
