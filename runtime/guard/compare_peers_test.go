package guard

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestPeers: a process in a network namespace of its own has a pair of sockets that are connected, one that listens, and, in one case, one that is connected to a server of the host.
func TestPeers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes network namespaces")
	}
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, outside := range []bool{false, true} {
		cmd := exec.Command("sleep", "60")
		started := make(chan error)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			started <- func() error {
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					return err
				}
				pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				own, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				if outside {
					if err := unix.Connect(own, &unix.SockaddrUnix{Name: path}); err != nil {
						return err
					}
				}
				for _, fd := range []int{pair[0], pair[1], own} {
					f := os.NewFile(uintptr(fd), "socket")
					defer f.Close()
					cmd.ExtraFiles = append(cmd.ExtraFiles, f)
				}
				return cmd.Start()
			}()
		}()
		if err := <-started; err != nil {
			t.Fatal(err)
		}
		var server net.Conn
		if outside { // one that was not accepted is nobody's yet
			if server, err = l.Accept(); err != nil {
				t.Fatal(err)
			}
		}
		k := &check{found: map[string]bool{}}
		k.Spec = &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace}}}}
		if err := k.peers([]int{cmd.Process.Pid}); err != nil || (len(k.differences) > 0) != outside {
			t.Errorf("outside: %t: %q (%v)", outside, k.differences, err)
		}
		shared := &check{found: map[string]bool{}}
		shared.Spec = &specs.Spec{Linux: &specs.Linux{}}
		if err := shared.peers([]int{cmd.Process.Pid}); err != nil || len(shared.differences) > 0 {
			t.Errorf("in the host's namespace: %q (%v)", shared.differences, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if server != nil {
			_ = server.Close()
		}
	}
}

// TestMappings has a user namespace that maps more than the specification does.
func TestMappings(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{HostID: 100000, Size: 10}}, GidMappings: []syscall.SysProcIDMap{{HostID: 100000, Size: 10}}}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for _, test := range []struct {
		host uint32
		more int
	}{{100000, 0}, {200000, 1}} {
		k := &check{found: map[string]bool{}}
		k.Spec = &specs.Spec{Linux: &specs.Linux{UIDMappings: []specs.LinuxIDMapping{{HostID: test.host, Size: 10}}}}
		if err := k.mappings(cmd.Process.Pid); err != nil || len(k.differences) != test.more {
			t.Errorf("mapped to %d: %q (%v)", test.host, k.differences, err)
		}
	}
}

// TestDecidesDevices has a cgroup of version 2 without a program for devices.
func TestDecidesDevices(t *testing.T) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if !strings.Contains(line, " - cgroup2 ") || len(fields) < 5 {
			continue
		}
		dir, err := os.MkdirTemp(fields[4], "cryo-test-")
		if err != nil {
			continue
		}
		defer os.Remove(dir)
		if decides, err := decidesDevices(dir); err != nil || decides {
			t.Errorf("a new cgroup decides about devices: %t (%v)", decides, err)
		}
		return
	}
	t.Skip("no cgroup of version 2 can be made")
}
