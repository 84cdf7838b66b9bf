package criu_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

// end is one end of a stream: a program in a network of its own, with one address.
type end struct {
	t        *testing.T
	holder   int // a process that keeps the network
	program  *exec.Cmd
	address  netip.Addr
	progress string
	images   string
	fence    *runc.Fence
}

// pairOfNetworks makes two networks that are connected by a pair of devices.
func pairOfNetworks(t *testing.T) (a, b *end) {
	t.Helper()
	var ends [2]*end
	for i := range ends {
		holder := exec.Command("sleep", "infinity")
		holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		if err := holder.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
		ends[i] = &end{t: t, holder: holder.Process.Pid, progress: filepath.Join(t.TempDir(), "progress"), images: t.TempDir()}
	}
	run(t, "ip", "link", "add", "eth0", "netns", strconv.Itoa(ends[0].holder), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(ends[1].holder))
	for _, e := range ends {
		e.run("ip", "link", "set", "lo", "up")
		e.run("ip", "link", "set", "eth0", "up")
	}
	return ends[0], ends[1]
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}

// within returns a command that runs in the end's network.
func (e *end) within(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(e.holder), "--net"}, args...)...)
}

func (e *end) run(args ...string) {
	e.t.Helper()
	if out, err := e.within(args...).CombinedOutput(); err != nil {
		e.t.Fatalf("%q: %v: %s", args, err, out)
	}
}

// is sets the one address of the network, in the place of what it has had.
func (e *end) is(address netip.Addr) {
	e.t.Helper()
	if e.address.IsValid() {
		e.run("ip", "address", "flush", "dev", "eth0")
	}
	e.address = address
	bits := 24
	if address.Is6() {
		bits = 64
	}
	e.run("ip", "address", "add", netip.PrefixFrom(address, bits).String(), "dev", "eth0", "nodad")
}

// start starts the program; own is where it listens, and peer where it connects to.
func (e *end) start(own, peer string) {
	e.t.Helper()
	program, err := os.Executable()
	if err != nil {
		e.t.Fatal(err)
	}
	e.program = e.within(program, own, peer, e.progress)
	e.program.Dir = "/"
	e.program.Env = append(os.Environ(), streamProgram+"=1", "GODEBUG=multipathtcp=0") // of which CRIU saves no sockets
	e.program.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := e.program.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		_ = e.program.Process.Kill()
		_, _ = e.program.Process.Wait()
		_ = unix.Kill(e.program.Process.Pid, unix.SIGKILL) // the restored one is no child
	})
}

// received returns how many numbers have come.
func (e *end) received() int {
	e.t.Helper()
	text, err := os.ReadFile(e.progress)
	if err != nil || len(text) == 0 {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		e.t.Fatalf("the end with the address %s: %s", e.address, text)
	}
	return n
}

// receives waits until so many numbers have come.
func (e *end) receives(n int) {
	e.t.Helper()
	for deadline := time.Now().Add(time.Minute); e.received() < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("the end with the address %s has received %d numbers, not %d", e.address, e.received(), n)
		}
	}
}

// criu runs CRIU in the end's network, as it runs for a container that has the host's. CRIU locks no connection: the fence does.
func (e *end) criu(args ...string) {
	e.t.Helper()
	var path string
	for _, name := range []string{os.Getenv("CRYO_CRIU"), "/opt/cryo/criu/bin/criu", "criu"} {
		if found, err := exec.LookPath(name); name != "" && err == nil {
			path = found
			break
		}
	}
	if path == "" && os.Getenv("CI") != "" {
		e.t.Fatal("no CRIU: run make deps")
	} else if path == "" {
		e.t.Skip("no CRIU: run make deps")
	}
	log := filepath.Join(e.images, args[0]+".log")
	args = append(args, "--images-dir", e.images, "--log-file", log, "-v4", "--no-default-config", "--manage-cgroups=ignore", "--network-lock=skip", "--tcp-established")
	if out, err := e.within(append([]string{path}, args...)...).CombinedOutput(); err != nil {
		text, _ := os.ReadFile(log)
		lines := strings.Split(string(text), "\n")
		e.t.Fatalf("criu %s: %v: %s%s", args[0], err, out, strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
}

// TestStream freezes both ends of a stream, changes the addresses of their networks, and restores them: each number comes once.
func TestStream(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("root is needed")
		}
		t.Skip("root is needed")
	}
	for name, test := range map[string]struct {
		a, b, newA, newB string
		listen           string // the address on which A listens
	}{
		"new addresses":       {a: "192.0.2.1", b: "192.0.2.2", newA: "192.0.2.3", newB: "192.0.2.4", listen: "192.0.2.1"},
		"exchanged addresses": {a: "192.0.2.1", b: "192.0.2.2", newA: "192.0.2.2", newB: "192.0.2.1", listen: "192.0.2.1"},
		"IPv6":                {a: "2001:db8::1", b: "2001:db8::2", newA: "2001:db8::3", newB: "2001:db8::1", listen: "2001:db8::1"},
		"mapped IPv4":         {a: "192.0.2.1", b: "192.0.2.2", newA: "192.0.2.3", newB: "192.0.2.1", listen: "::"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pairOfNetworks(t)
			addresses := map[netip.Addr]netip.Addr{netip.MustParseAddr(test.a): netip.MustParseAddr(test.newA), netip.MustParseAddr(test.b): netip.MustParseAddr(test.newB)}
			ends := []*end{a, b}
			a.is(netip.MustParseAddr(test.a))
			b.is(netip.MustParseAddr(test.b))
			a.start(test.listen, "")
			waitForListener(t, a)
			b.start("", test.a)
			for _, e := range ends {
				e.receives(10_000)
				e.cut()
			}
			for _, e := range ends {
				e.criu("dump", "--tree", strconv.Itoa(e.program.Process.Pid))
				_, _ = e.program.Process.Wait() // CRIU has killed it
			}
			before := connection(t, a)
			if other := connection(t, b); other.Local != before.Remote || other.Remote != before.Local || before.Local != netip.AddrPortFrom(a.address, streamPort) {
				t.Fatalf("one end has the connection %v, and the other %v", before, other)
			}
			for _, e := range ends {
				e.is(addresses[e.address])
				if err := criu.Readdress(e.images, addresses); err != nil {
					t.Fatal(err)
				}
				e.lower()
				e.await()
			}
			after := connection(t, a)
			if after.Local != netip.AddrPortFrom(a.address, before.Local.Port()) || after.Remote != netip.AddrPortFrom(b.address, before.Remote.Port()) {
				t.Errorf("the connection is %v, and was %v", after, before)
			}
			for _, e := range ends {
				e.criu("restore", "--restore-detached", "--leave-stopped")
			}
			had := []int{a.received(), b.received()}
			for _, e := range ends {
				e.lower()
				if err := unix.Kill(e.program.Process.Pid, unix.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			for _, e := range ends {
				if err := runc.Probe([]int{e.program.Process.Pid}); err != nil {
					t.Fatal(err)
				}
			}
			since := time.Now()
			// A restored connection whose peer had no room waits for 3 s, unless it is probed.
			const queued, beyond, soon = 20_000, 100_000, 2 * time.Second
			for i, e := range ends {
				if e.receives(had[i] + queued); time.Since(since) > soon {
					t.Errorf("the stream to %s goes on after %s", e.address, time.Since(since))
				}
			}
			for i, e := range ends {
				e.receives(had[i] + beyond)
			}
			// The listener is there by its new address.
			if err := criu.InNamespace(unix.CLONE_NEWNET, fmt.Sprintf("/proc/%d/ns/net", b.holder), func() error {
				c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a.address, streamPort).String(), 10*time.Second)
				if err == nil {
					err = c.Close()
				}
				return err
			}); err != nil {
				t.Errorf("connect to the listener: %v", err)
			}
		})
	}
}

// cut puts up a fence around the sockets of the program that runs.
func (e *end) cut() {
	e.t.Helper()
	e.raise(func(n *runc.Network) (runc.Sockets, error) { return n.Sockets([]int{e.program.Process.Pid}) })
}

// await puts up a fence around the sockets that CRIU is about to make.
func (e *end) await() {
	e.t.Helper()
	e.raise(func(*runc.Network) (s runc.Sockets, err error) {
		connections, listeners, err := criu.Connections(e.images)
		for _, c := range connections {
			s.Connections = append(s.Connections, runc.Connection(c))
		}
		s.Listeners = listeners
		return s, err
	})
}

func (e *end) raise(find func(*runc.Network) (runc.Sockets, error)) {
	e.t.Helper()
	n, err := runc.OpenNetwork(e.holder)
	if err != nil {
		e.t.Fatal(err)
	}
	defer n.Close()
	sockets, err := find(n)
	if err != nil || len(sockets.Connections) == 0 {
		e.t.Fatalf("the end with the address %s has the sockets %v, %v", e.address, sockets, err)
	}
	if e.fence, err = n.Fence(sockets); err != nil {
		e.t.Fatal(err)
	}
}

// lower takes the fence away.
func (e *end) lower() {
	e.t.Helper()
	if err := e.fence.Close(); err != nil {
		e.t.Fatal(err)
	}
}

// connection returns the one that the end's images have.
func connection(t *testing.T, e *end) criu.Connection {
	t.Helper()
	connections, listeners, err := criu.Connections(e.images)
	if err != nil || len(connections) != 1 {
		t.Fatalf("the images have the connections %v, %v", connections, err)
	}
	if port := slices.IndexFunc(listeners, func(l netip.AddrPort) bool { return l.Port() == streamPort }); (port >= 0) != (connections[0].Local.Port() == streamPort) {
		t.Errorf("the images have the connection %v and the listeners %v", connections[0], listeners)
	}
	return connections[0]
}

// waitForListener waits until the program listens.
func waitForListener(t *testing.T, e *end) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		out, err := e.within("ss", "--tcp", "--listening", "--numeric").Output()
		if err == nil && strings.Contains(string(out), fmt.Sprint(":", streamPort)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the program does not listen: %s, %v", out, err)
		}
	}
}
