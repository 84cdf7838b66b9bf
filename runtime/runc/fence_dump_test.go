package runc

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// criuProgram finds CRIU.
func criuProgram(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("CRYO_CRIU"), "/opt/cryo/criu/bin/criu", "criu"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("CRIU is needed")
	}
	t.Skip("CRIU is needed")
	return ""
}

// TestFenceDump has CRIU dump a process with an established connection behind a fence, by each of CRIU's ways to lock a network, in a network of the process's own and in one that
// CRIU shares with it. No packet passes before the fence is gone, and then the connection goes on.
func TestFenceDump(t *testing.T) {
	program := criuProgram(t)
	for _, lock := range []string{"nftables", "iptables"} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shared %v", lock, shared), func(t *testing.T) {
				a, b := places(t)
				l := b.listen("tcp", "10.9.0.2:7000")
				client := a.dial("tcp", "10.9.0.2:7000")
				server := accept(t, l)
				socket, err := server.(*net.TCPConn).File()
				if err != nil {
					t.Fatal(err)
				}
				defer socket.Close()
				holds := exec.Command("sleep", "infinity")
				holds.ExtraFiles = []*os.File{socket}
				holds.SysProcAttr = &unix.SysProcAttr{Setsid: true}
				b.here(holds.Start)
				defer func() {
					_ = holds.Process.Kill()
					_ = holds.Wait()
				}()
				pid := holds.Process.Pid
				if err := unix.SetNonblock(int(socket.Fd()), true); err != nil { // starting a process with it has ended that, for all that have it
					t.Fatal(err)
				}
				if !passes(t, client, server, aliveTime) {
					t.Fatal("nothing passes")
				}
				s, err := b.network.Sockets([]int{pid})
				if err != nil || len(s.Connections) != 1 || s.Connections[0] != of(server) {
					t.Fatalf("sockets are %+v, %v", s, err)
				}
				f, err := b.network.Fence(s)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				dir := t.TempDir()
				args := []string{"dump", "--tree", fmt.Sprint(pid), "--images-dir", dir, "--log-file", "dump.log", "-v4", "--leave-running", "--tcp-established", "--manage-cgroups=ignore", "--network-lock", lock}
				var info unix.Stat_t
				if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &info); err != nil {
					t.Fatal(err)
				}
				var out []byte
				if shared {
					b.here(func() error {
						out, _ = exec.Command(program, args...).CombinedOutput() // its log tells
						return nil
					})
				} else {
					out, err = exec.Command(program, append(args, "--external", fmt.Sprintf("net[%d]:network", info.Ino))...).CombinedOutput()
				}
				log, _ := os.ReadFile(filepath.Join(dir, "dump.log"))
				if !strings.Contains(string(log), "Dumping finished successfully") {
					t.Fatalf("%v: %s\n%s", err, out, log[max(0, len(log)-3000):])
				}
				if passes(t, client, server, cutTime) || passes(t, server, client, cutTime) {
					t.Error("packets pass the fence")
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				if !arrives(t, server, aliveTime) || !arrives(t, client, aliveTime) {
					t.Error("packets do not pass when the fence is gone")
				}
				if tables := in(t, b.pid, "nft list tables"); strings.Contains(tables, tablePrefix) || strings.Contains(tables, fencePrefix) {
					t.Errorf("left is %s", tables)
				}
			})
		}
	}
}
