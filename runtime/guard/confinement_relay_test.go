package guard

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/criu"
)

// ends are what a relay is given, and the other ends of them.
type ends struct{ runc, criu int }

func connect(t *testing.T, bundle string) ends {
	t.Helper()
	shim, err := dial(bundle)
	if err != nil {
		t.Fatal(err)
	}
	defer shim.Close()
	var own, given [2]int
	for i := range own {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		own[i], given[i] = pair[0], pair[1]
		timeout := unix.Timeval{Sec: 10}
		if err := unix.SetsockoptTimeval(own[i], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			t.Fatal(err)
		}
	}
	if err := shim.SendBytes([]byte{0}, given[:]...); err != nil {
		t.Fatal(err)
	}
	for _, fd := range given {
		unix.Close(fd)
	}
	t.Cleanup(func() {
		for _, fd := range own {
			unix.Close(fd)
		}
	})
	return ends{own[0], own[1]}
}

func notification(t *testing.T, script string, pid int32) []byte {
	t.Helper()
	data, err := (&rpc.CriuResp{Type: new(rpc.CriuReqType_NOTIFY), Success: new(true), Notify: &rpc.CriuNotify{Script: &script, Pid: &pid}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// receives reads the next message that arrives.
func receives(t *testing.T, at int) []byte {
	t.Helper()
	got := make([]byte, channel.MaxMessage)
	n, _, err := unix.Recvfrom(at, got, 0)
	if err != nil {
		t.Fatalf("nothing arrives: %v", err)
	}
	return got[:n]
}

// fails has the next message that runc receives say that the restore has failed.
func fails(t *testing.T, runc int) {
	t.Helper()
	data := receives(t, runc)
	var response rpc.CriuResp
	if err := response.UnmarshalVT(data); err != nil || response.GetSuccess() {
		t.Errorf("runc receives %q (%v)", data, err)
	}
}

func exchange(t *testing.T, from, to int, data []byte) {
	t.Helper()
	if err := unix.Send(from, data, 0); err != nil {
		t.Fatal(err)
	}
	if got := receives(t, to); string(got) != string(data) {
		t.Fatalf("%q arrives as %q", data, got)
	}
}

// bundleOf makes a bundle with a specification that has these namespaces.
func bundleOf(t *testing.T, namespaces string) (bundle string) {
	t.Helper()
	bundle = t.TempDir()
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"linux": {"namespaces": [`+namespaces+`]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return bundle
}

// TestRelayNetwork has the loopback device set up in a network of the container's own, and in no other, and the shim hears of that one before CRIU goes on.
func TestRelayNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may enter namespaces")
	}
	for namespaces, want := range map[string]bool{`{"type": "pid"}, {"type": "network"}`: true, `{"type": "network", "path": "/run/netns/x"}`: false, `{"type": "pid"}`: false} {
		bundle := bundleOf(t, namespaces)
		var made int
		r, err := Listen(bundle, func(first int) error {
			made = first
			return nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		e := connect(t, bundle)
		container := exec.Command("sleep", "infinity")
		container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		if err := container.Start(); err != nil {
			t.Fatal(err)
		}
		exchange(t, e.criu, e.runc, notification(t, "setup-namespaces", int32(container.Process.Pid)))
		err = criu.InNamespace(unix.CLONE_NEWNET, fmt.Sprintf("/proc/%d/ns/net", container.Process.Pid), func() error {
			lo, err := net.InterfaceByName("lo")
			if err == nil && (lo.Flags&net.FlagUp != 0) != want {
				t.Errorf("with the namespaces %s the loopback device is %s", namespaces, lo.Flags)
			}
			return err
		})
		if err := errors.Join(err, r.Close(), container.Process.Kill()); err != nil {
			t.Error(err)
		}
		if (made == container.Process.Pid) != want || made != 0 && !want {
			t.Errorf("with the namespaces %s the network of process %d is made, and the container's is %d", namespaces, made, container.Process.Pid)
		}
		_ = container.Wait() // it was killed
	}
}

func TestRelayPasses(t *testing.T) {
	bundle := bundleOf(t, "")
	var asked int
	r, err := Listen(bundle, nil, func(init, _ int) error {
		asked = init
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	container := exec.Command("sleep", "infinity")
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = container.Process.Kill()
		_ = container.Wait()
	}()
	e := connect(t, bundle)
	exchange(t, e.runc, e.criu, []byte("request"))
	exchange(t, e.criu, e.runc, notification(t, "setup-namespaces", int32(container.Process.Pid)))
	exchange(t, e.runc, e.criu, []byte("yes"))

	// A terminal goes to runc as a descriptor.
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Sendmsg(e.criu, notification(t, "orphan-pts-master", 0), unix.UnixRights(int(file.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(e.runc, make([]byte, channel.MaxMessage), oob, 0)
	if err != nil || n == 0 {
		t.Fatalf("%d bytes of descriptors arrive (%v)", n, err)
	}
	if rights, err := unix.ParseSocketControlMessage(oob[:n]); err == nil && len(rights) == 1 {
		fds, _ := unix.ParseUnixRights(&rights[0])
		channel.Close(fds)
	}

	exchange(t, e.criu, e.runc, notification(t, "pre-resume", 0))
	unix.Shutdown(e.runc, unix.SHUT_WR)
	if n, _, err := unix.Recvfrom(e.criu, make([]byte, 8), 0); n != 0 || err != nil {
		t.Errorf("runc has ended, and CRIU gets %d bytes (%v)", n, err)
	}
	unix.Shutdown(e.criu, unix.SHUT_WR)
	if n, _, err := unix.Recvfrom(e.runc, make([]byte, 8), 0); n != 0 || err != nil {
		t.Errorf("CRIU has ended, and runc gets %d bytes (%v)", n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if asked != container.Process.Pid {
		t.Errorf("it asks whether process %d may run", asked)
	}
	if _, err := os.Lstat(filepath.Join(bundle, socketName)); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestRelayStranger has a CRIU that says that a process of the host is the container's first: it is not ended, though it has what a container must not have.
func TestRelayStranger(t *testing.T) {
	out, err := exec.Command("sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	var stranger int
	if _, err := fmt.Sscan(string(out), &stranger); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(stranger, unix.SIGKILL) }()
	bundle := bundleOf(t, "")
	r, err := Listen(bundle, nil, func(int, int) error { return errors.New("refused") })
	if err != nil {
		t.Fatal(err)
	}
	e := connect(t, bundle)
	if err := unix.Send(e.criu, notification(t, "pre-resume", int32(stranger)), 0); err != nil {
		t.Fatal(err)
	}
	fails(t, e.runc)
	if err := r.Close(); err == nil {
		t.Error("it ends without an error")
	}
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", stranger)); err != nil || strings.Contains(string(status), "State:\tZ") {
		t.Errorf("a process of the host was ended: %v", err)
	}
}

// TestRelayUnasked has a CRIU that says that it is through, and has not said that it was about to let the container run.
func TestRelayUnasked(t *testing.T) {
	bundle := t.TempDir()
	r, err := Listen(bundle, nil, func(int, int) error { return errors.New("asked") })
	if err != nil {
		t.Fatal(err)
	}
	e := connect(t, bundle)
	data, err := (&rpc.CriuResp{Type: new(rpc.CriuReqType_RESTORE), Success: new(true)}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Send(e.criu, data, 0); err != nil {
		t.Fatal(err)
	}
	fails(t, e.runc)
	if err := r.Close(); err == nil || err.Error() == "asked" {
		t.Errorf("it ends with %v", err)
	}
}

func TestRelayUnused(t *testing.T) {
	r, err := Listen(t.TempDir(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
