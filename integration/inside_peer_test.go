package integration

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestInsidePeer has a connection to a server outside of the hosts. The container's network is a named one with an
// address of its own, as a network plugin makes it; it is taken from one host and made on the other with the same
// address. The server's connection is the same before and after.
func TestInsidePeer(t *testing.T) {
	dumpsNetwork(t)
	a, b := pair(t)
	server, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan string, 16)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			accepted <- c.RemoteAddr().String()
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					fmt.Fprintln(c, lines.Text())
				}
			}()
		}
	}()
	t.Cleanup(func() { _ = server.Close() })

	j := journey{id: name(t), checkpoint: []string{"--tcp-established"}}
	plug(t, a)
	j.run = append([]string{"--with-ns", "network:/run/netns/peer"}, plainTCP...)
	j.between = func() {
		unplug(t, a)
		plug(t, b)
	}
	j.restore = []string{"--network-ns", "/run/netns/peer"}
	before, after := travel(t, j, "tcp", "--connect", server.Addr().String())
	if before.State["connection"] != after.State["connection"] {
		t.Errorf("connection was %v and is %v", before.State["connection"], after.State["connection"])
	}
	if n := len(accepted); n != 1 {
		t.Errorf("the server saw %d connections, not one", n)
	}
}

// plug makes the network namespace "peer" on a host, with an address on the lab's bridge. It is unplugged when the test ends.
func plug(t *testing.T, h *lab.Host) {
	t.Helper()
	ip, mask, bridge := outside(t)
	ip[3] = 200
	port := bridge + "-peer"
	t.Cleanup(func() { unplug(t, h) })
	must(t, h.Run(t.Context(), "ip", "netns", "add", "peer"))
	machine(t, "ip", "link", "add", port, "type", "veth", "peer", "name", port+"0")
	machine(t, "ip", "link", "set", port, "master", bridge, "up")
	// Of the host only the mounts, where the namespace has its name.
	machine(t, "nsenter", "--target", strconv.Itoa(h.Pid()), "--mount", "ip", "link", "set", port+"0", "netns", "peer", "name", "eth0")
	for _, args := range [][]string{
		{"address", "add", fmt.Sprintf("%s/%d", ip, mask), "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"link", "set", "lo", "up"},
	} {
		must(t, h.Run(t.Context(), append([]string{"ip", "-netns", "peer"}, args...)...))
	}
}

// unplug takes the network namespace away again, if it is there.
func unplug(t *testing.T, h *lab.Host) {
	t.Helper()
	ctx := cleanupContext(t)
	if h.Run(ctx, "test", "-e", "/run/netns/peer").Code != 0 {
		return
	}
	_, _, bridge := outside(t)
	machine(t, "ip", "link", "delete", bridge+"-peer")
	must(t, h.Run(ctx, "ip", "netns", "delete", "peer"))
	must(t, h.Run(ctx, "umount", "/run/netns"))
}

// outside is the machine's address on the lab's bridge, the bits of its network, and the bridge.
func outside(t *testing.T) (ip net.IP, mask int, bridge string) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, address := range addresses {
			if n, ok := address.(*net.IPNet); ok && n.IP.String() == shared.lab.Address() {
				mask, _ = n.Mask.Size()
				return slices.Clone(n.IP.To4()), mask, i.Name
			}
		}
	}
	t.Fatalf("no network device has the address %s", shared.lab.Address())
	return nil, 0, ""
}

// machine runs a program on the machine itself.
func machine(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(cleanupContext(t), args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}
