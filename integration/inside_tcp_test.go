package integration

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

// plainTCP keeps a Go program from listening with Multipath TCP, which CRIU does not know.
var plainTCP = []string{"--env", "GODEBUG=multipathtcp=0"}

// TestInsideListening has a socket that listens, and takes connections on the other host.
func TestInsideListening(t *testing.T) {
	dumpsNetwork(t)
	travel(t, journey{run: plainTCP}, "tcp")
}

// TestInsidePortTaken restores a container that listens in the host's network beside the one that it was taken of.
func TestInsidePortTaken(t *testing.T) {
	dumpsNetwork(t)
	a, _ := pair(t)
	j := journey{id: name(t)}
	startImage(t, a, shared.image, j.id, append([]string{"--net-host"}, plainTCP...), "workload", "tcp")
	await(t, a, j.id)
	forget(t, a, j.ref())
	must(t, a.Cryo(t.Context(), "checkpoint", j.id, j.ref(), "--leave-running"))
	r := a.Cryo(t.Context(), "restore", j.ref(), "--name", j.id+"-2", "--allow", "all")
	if r.Code == 0 || !strings.Contains(r.Stderr, "ss -lntup") {
		t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
	}
	await(t, a, j.id)
}

// TestInsideConnection has a TCP connection with both ends in the container, which goes on with the flag for it. Without
// the flag there is no snapshot, and the container goes on.
func TestInsideConnection(t *testing.T) {
	dumpsNetwork(t)
	a, _ := pair(t)
	j := journey{id: name(t), checkpoint: []string{"--tcp-established"}}
	startImage(t, a, shared.image, j.id, plainTCP, "workload", "tcp", "--connect", "self")
	first := await(t, a, j.id)
	if r := a.Cryo(t.Context(), "checkpoint", j.id, j.ref()); r.Code != codePrecondition || !strings.Contains(r.Stderr, "--tcp-established") {
		t.Errorf("without the flag: exit status %d: %s", r.Code, r.Stderr)
	}
	before, after := move(t, j)
	goneOn(t, first, before)
	if before.State["connection"] != after.State["connection"] {
		t.Errorf("connection was %v and is %v", before.State["connection"], after.State["connection"])
	}
}

// TestInsideInFlight connects to a server that stands still for its checkpoint: there is a snapshot all the same, and the connection is answered when the server goes on.
func TestInsideInFlight(t *testing.T) {
	dumpsNetwork(t)
	a, _ := pair(t)
	j := journey{id: name(t)}
	startImage(t, a, shared.image, j.id, plainTCP, "workload", "tcp")
	first := await(t, a, j.id)
	pid, _, err := a.Task(t.Context(), j.id)
	if err != nil {
		t.Fatal(err)
	}
	forget(t, a, j.ref())
	for range 2 {
		answered := make(chan error, 1)
		go func() {
			answered <- criu.InNamespace(unix.CLONE_NEWNET, fmt.Sprintf("/proc/%d/ns/net", pid), func() error { return askFrozen(pid) })
		}()
		must(t, a.Cryo(t.Context(), "checkpoint", j.id, j.ref(), "--leave-running"))
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	before, after := move(t, j)
	goneOn(t, first, before)
	goneOn(t, before, after)
}

// askFrozen waits until a process stands still, and asks the echo service that it has in this thread's network.
func askFrozen(pid int) error {
	for deadline := time.Now().Add(time.Minute); ; {
		frozen, err := runc.Frozen(pid)
		if err != nil {
			return err
		}
		if frozen {
			break
		}
		if time.Now().After(deadline) {
			return errors.New("it does not stand still")
		}
	}
	conn, err := net.DialTimeout("tcp4", "127.0.0.1:7000", time.Minute)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && answer != "hello\n" {
		err = fmt.Errorf("the answer is %q", answer)
	}
	return err
}

// TestInsideMultipath has a socket that CRIU does not know. There is no snapshot but good advice, and the container goes on.
func TestInsideMultipath(t *testing.T) {
	a, _ := pair(t)
	if _, err := os.Stat("/proc/sys/net/mptcp/enabled"); err != nil {
		t.Skip("the kernel has no Multipath TCP:", err)
	}
	j := journey{id: name(t)}
	startImage(t, a, shared.image, j.id, []string{"--env", "GODEBUG=multipathtcp=1"}, "workload", "tcp")
	before := await(t, a, j.id)
	if r := a.Cryo(t.Context(), "checkpoint", j.id, j.ref()); r.Code != codePrecondition || !strings.Contains(r.Stderr, "GODEBUG=multipathtcp=0") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
	goneOn(t, before, await(t, a, j.id))
}

// dumpsNetwork skips the test, or fails it in CI, where CRIU is too old for the kernel's network sockets.
func dumpsNetwork(t *testing.T) {
	t.Helper()
	a, _ := pair(t)
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(kernel.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if major < 6 || major == 6 && minor < 16 {
		return
	}
	version := must(t, a.Run(t.Context(), "criu", "--version")).Stdout
	if _, err := fmt.Sscanf(version, "Version: %d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if major > 4 || major == 4 && minor >= 2 {
		return
	}
	const missing = "CRIU before 4.2 cannot dump sockets of this kernel; run: make deps"
	if os.Getenv("CI") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
}
