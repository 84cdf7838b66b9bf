package runc

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
)

// place is a network of a test, in which it has sockets.
type place struct {
	*testing.T
	pid     int
	network *Network
}

// places are two networks that a pair of network cards connects, with addresses of IPv4 and IPv6.
func places(t *testing.T) (a, b place) {
	t.Helper()
	a, b = place{T: t, pid: network(t)}, place{T: t, pid: network(t)}
	in(t, a.pid, fmt.Sprintf("ip link add veth0 type veth peer name veth0 netns %d", b.pid))
	for i, p := range []*place{&a, &b} {
		in(t, p.pid, fmt.Sprintf("ip link set lo up; ip addr add 10.9.0.%d/24 dev veth0; ip addr add fd09::%d/64 dev veth0 nodad; ip link set veth0 up", i+1, i+1))
		var err error
		if p.network, err = OpenNetwork(p.pid); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.network.Close() })
	}
	return a, b
}

// here calls do in the network.
func (p place) here(do func() error) {
	p.Helper()
	if err := criu.InNamespace(unix.CLONE_NEWNET, fmt.Sprintf("/proc/%d/ns/net", p.pid), do); err != nil {
		p.Fatal(err)
	}
}

// listen listens in the network, without Multipath TCP.
func (p place) listen(network, address string) (l net.Listener) {
	p.Helper()
	p.here(func() (err error) {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false)
		l, err = plain.Listen(p.Context(), network, address)
		return err
	})
	p.Cleanup(func() { l.Close() })
	return l
}

// dial connects from the network.
func (p place) dial(network, address string) (c net.Conn) {
	p.Helper()
	p.here(func() (err error) {
		c, err = net.DialTimeout(network, address, 5*time.Second)
		return err
	})
	p.Cleanup(func() { c.Close() })
	return c
}

// ask asks for a connection, and does not wait for it.
func (p place) ask(to string) (socket int) {
	p.Helper()
	at := netip.MustParseAddrPort(to)
	family, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(at.Port())})
	if at.Addr().Is6() {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	} else {
		address.(*unix.SockaddrInet4).Addr = at.Addr().As4()
	}
	p.here(func() (err error) {
		if socket, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err = unix.Connect(socket, address); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
		return err
	})
	p.Cleanup(func() { _ = unix.Close(socket) })
	return socket
}

// isConnected reports whether a connection that was asked for is made within a time.
func isConnected(t *testing.T, socket int, within time.Duration) bool {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLOUT}}
	for deadline := time.Now().Add(within); ; {
		n, err := unix.Poll(poll, int(max(0, time.Until(deadline)).Milliseconds()))
		if err == nil {
			return n > 0 && poll[0].Revents == unix.POLLOUT
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

// accept accepts a connection.
func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(aliveTime)); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// sockets lists those that this process has in the network.
func (p place) sockets() Sockets {
	p.Helper()
	s, err := p.network.Sockets([]int{os.Getpid()})
	if err != nil {
		p.Fatal(err)
	}
	return s
}

// of returns the connection that a socket is.
func of(c net.Conn) Connection {
	at := func(a net.Addr) netip.AddrPort {
		p := a.(*net.TCPAddr).AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	return Connection{Local: at(c.LocalAddr()), Remote: at(c.RemoteAddr())}
}

// passes reports whether a byte comes from one end of a connection to the other within a time.
func passes(t *testing.T, from, to net.Conn, within time.Duration) bool {
	t.Helper()
	if _, err := from.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	return arrives(t, to, within)
}

// arrives reports whether a byte comes within a time.
func arrives(t *testing.T, to net.Conn, within time.Duration) bool {
	t.Helper()
	if err := to.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := to.Read(make([]byte, 1))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
}

const (
	cutTime   = 100 * time.Millisecond // in which no byte comes
	aliveTime = 10 * time.Second       // in which one must, on a busy machine too
)

// TestFence cuts a connection of each kind, in both directions, from either end. What was written meanwhile comes when the fence is gone.
func TestFence(t *testing.T) {
	for name, test := range map[string]struct{ network, at, to string }{
		"4":          {"tcp4", "10.9.0.2:7000", "10.9.0.2:7000"},
		"4, any":     {"tcp4", "0.0.0.0:7000", "10.9.0.2:7000"},
		"6":          {"tcp6", "[fd09::2]:7000", "[fd09::2]:7000"},
		"6, any":     {"tcp6", "[::]:7000", "[fd09::2]:7000"},
		"4 within 6": {"tcp", "[::]:7000", "10.9.0.2:7000"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := places(t)
			l := b.listen(test.network, test.at)
			client := a.dial("tcp", test.to)
			server := accept(t, l)
			for end, s := range map[string]struct {
				place
				own net.Conn
			}{"client": {a, client}, "server": {b, server}} {
				sockets := s.sockets()
				if !slices.Equal(sockets.Connections, []Connection{of(s.own)}) || len(sockets.Waiting)+len(sockets.Arriving)+len(sockets.Closing) > 0 {
					t.Fatalf("%s has %+v, not %+v", end, sockets, of(s.own))
				}
				f, err := s.network.Fence(sockets)
				if err != nil {
					t.Fatal(err)
				}
				if passes(t, client, server, cutTime) || passes(t, server, client, cutTime) {
					t.Errorf("packets pass the fence of the %s", end)
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				if tables := in(t, s.pid, "nft list tables"); tables != "" {
					t.Errorf("left is %s", tables)
				}
				if !arrives(t, server, aliveTime) || !arrives(t, client, aliveTime) || !passes(t, client, server, aliveTime) || !passes(t, server, client, aliveTime) {
					t.Errorf("packets do not pass when the fence of the %s is gone", end)
				}
			}
		})
	}
}

// TestFenceListeners: nothing connects to a listener behind a fence, and a peer that asks is connected when it is gone. A listener of IPv6 alone leaves that of IPv4 at its
// port, which is not the container's, as it is.
func TestFenceListeners(t *testing.T) {
	a, b := places(t)
	fenced, other := b.listen("tcp6", "[::]:7000"), b.listen("tcp4", "0.0.0.0:7000")
	at := netip.MustParseAddrPort("[::]:7000")
	if s := b.sockets(); !slices.Contains(s.Listeners, at) || len(s.Listeners) != 2 {
		t.Fatalf("listeners are %v", s.Listeners)
	}
	for name, cut := range map[string]func() (*Fence, error){
		"fence":     func() (*Fence, error) { return b.network.Fence(Sockets{Listeners: []netip.AddrPort{at}}) },
		"turn away": func() (*Fence, error) { return b.network.TurnAway([]netip.AddrPort{at}) },
	} {
		earlier := a.dial("tcp", "[fd09::2]:7000")
		accepted := accept(t, fenced)
		f, err := cut()
		if err != nil {
			t.Fatal(err)
		}
		if passed := passes(t, earlier, accepted, map[bool]time.Duration{true: cutTime, false: aliveTime}[name == "fence"]); passed != (name == "turn away") {
			t.Errorf("%s: that packets of an earlier connection pass is %v", name, passed)
		}
		asking := a.ask("[fd09::2]:7000")
		if isConnected(t, asking, cutTime) {
			t.Errorf("%s: a peer has connected", name)
		}
		a.dial("tcp", "10.9.0.2:7000")
		accept(t, other)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		accept(t, fenced)
		if !isConnected(t, asking, aliveTime) {
			t.Errorf("%s: a peer has not connected when it is gone", name)
		}
	}
}

// TestFenceOthers has a fence in a network that is shared with others, as the host's: their connections to the same hosts, and their listeners, go on.
func TestFenceOthers(t *testing.T) {
	a, b := places(t)
	b.network.shared = true
	l, others := b.listen("tcp", "[::]:7000"), b.listen("tcp", "[::]:7001")
	client, other := a.dial("tcp", "10.9.0.2:7000"), a.dial("tcp", "10.9.0.2:7001")
	server, kept := accept(t, l), accept(t, others)
	back := a.listen("tcp", "10.9.0.1:7002")
	out := b.dial("tcp", "10.9.0.1:7002")
	in := accept(t, back)
	f, err := b.network.Fence(Sockets{Connections: []Connection{of(server)}, Listeners: []netip.AddrPort{netip.MustParseAddrPort("[::]:7000"), netip.MustParseAddrPort("0.0.0.0:7000")}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if passes(t, client, server, cutTime) || passes(t, server, client, cutTime) {
		t.Error("packets pass the fence")
	}
	for _, pair := range [][2]net.Conn{{other, kept}, {kept, other}, {out, in}, {in, out}} {
		if !passes(t, pair[0], pair[1], aliveTime) {
			t.Errorf("packets of %+v do not pass", of(pair[0]))
		}
	}
	more := a.dial("tcp", "10.9.0.2:7001")
	if !passes(t, more, accept(t, others), aliveTime) {
		t.Error("packets of a new connection do not pass")
	}
}

// TestFenceLoopback cuts a connection within a network.
func TestFenceLoopback(t *testing.T) {
	a, _ := places(t)
	l := a.listen("tcp", "127.0.0.1:7000")
	client := a.dial("tcp", "127.0.0.1:7000")
	server := accept(t, l)
	s := a.sockets()
	if len(s.Connections) != 2 {
		t.Fatalf("sockets are %+v", s)
	}
	f, err := a.network.Fence(Sockets{Connections: []Connection{of(client)}})
	if err != nil {
		t.Fatal(err)
	}
	if passes(t, client, server, cutTime) || passes(t, server, client, cutTime) {
		t.Error("packets pass the fence")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if !arrives(t, client, aliveTime) || !arrives(t, server, aliveTime) {
		t.Error("packets do not pass when the fence is gone")
	}
}

// TestFenceMany cuts more connections than a message has room for.
func TestFenceMany(t *testing.T) {
	a, _ := places(t)
	var s Sockets
	for i := range 3*maxKeys + 1 {
		port := uint16(1024 + i)
		for _, address := range []string{"10.9.0.1", "fd09::1"} {
			at := netip.AddrPortFrom(netip.MustParseAddr(address), port)
			s.Connections = append(s.Connections, Connection{Local: at, Remote: at})
			s.Listeners = append(s.Listeners, at)
		}
	}
	s.Connections, s.Listeners = append(s.Connections, s.Connections[0]), append(s.Listeners, s.Listeners[0])
	began := time.Now()
	f, err := a.network.Fence(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d connections were cut within %s", len(s.Connections), time.Since(began))
	if n := strings.Count(in(t, a.pid, "nft list table inet "+f.table.Name), "10.9.0.1 . "); n != 2*(3*maxKeys+1)+(3*maxKeys+1) {
		t.Errorf("%d addresses of IPv4 are in the table", n)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// ownsFence makes this program one that has a fence in the network of a process.
const ownsFence = "CRYO_TEST_OWNS_FENCE"

// TestFenceOwner: the table goes with the process that has made it, and no other process can remove it before.
func TestFenceOwner(t *testing.T) {
	if pid := os.Getenv(ownsFence); pid != "" {
		var number int
		if _, err := fmt.Sscan(pid, &number); err != nil {
			t.Fatal(err)
		}
		n, err := OpenNetwork(number)
		if err != nil {
			t.Fatal(err)
		}
		f, err := n.Fence(Sockets{Listeners: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:1")}})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("there")
		time.Sleep(time.Hour) // it is killed
		t.Fatal(f.Close())
	}
	pid := network(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestFenceOwner$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", ownsFence, pid))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "there\n" {
		t.Fatalf("it writes %q, %v", line, err)
	}
	in(t, pid, "nft flush ruleset")
	if tables := in(t, pid, "nft list tables"); !strings.Contains(tables, "inet "+fencePrefix) {
		t.Fatalf("there are only %q", tables)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	for deadline := time.Now().Add(aliveTime); ; time.Sleep(time.Millisecond) {
		tables := in(t, pid, "nft list tables")
		if tables == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left is %s", tables)
		}
	}
}
