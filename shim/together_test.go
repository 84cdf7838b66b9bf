package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// socketRecord is the record of a socket of TCP, with what matters to a fence: a message of CRIU's has more fields, which are required.
func socketRecord(state, sourcePort, destinationPort uint64, source, destination []byte) []byte {
	const family, kind, protocol, tcp, stream, inet, file, socket = 3, 4, 5, 6, 1, 2, 1, 4
	var s []byte
	number := func(field protowire.Number, n uint64) {
		s = protowire.AppendVarint(protowire.AppendTag(s, field, protowire.VarintType), n)
	}
	for field, n := range map[protowire.Number]uint64{1: 1, 2: 1, family: inet, kind: stream, protocol: tcp, 6: state, 7: sourcePort, 8: destinationPort, 9: 0, 10: 0} {
		number(field, n)
	}
	for field, a := range map[protowire.Number][]byte{11: source, 12: destination} {
		number(field, uint64(a[0])|uint64(a[1])<<8|uint64(a[2])<<16|uint64(a[3])<<24)
	}
	empty := func(field protowire.Number, required int) {
		var m []byte
		for i := 1; i <= required; i++ {
			m = protowire.AppendVarint(protowire.AppendTag(m, protowire.Number(i), protowire.VarintType), 0)
		}
		s = protowire.AppendBytes(protowire.AppendTag(s, field, protowire.BytesType), m)
	}
	empty(13, 5)
	empty(14, 6)
	record := protowire.AppendVarint(protowire.AppendTag(nil, file, protowire.VarintType), uint64(fdinfo.FdTypes_INETSK))
	record = protowire.AppendVarint(protowire.AppendTag(record, 2, protowire.VarintType), 1)
	return protowire.AppendBytes(protowire.AppendTag(record, socket, protowire.BytesType), s)
}

// TestFence puts up a fence in the network namespace of a container with a path, and in its own, and takes it away.
func TestFence(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("root is needed")
		}
		t.Skip("root is needed")
	}
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	path := fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	rules := func() string {
		t.Helper()
		out, err := exec.Command("nsenter", "--net="+path, "nft", "list", "ruleset").CombinedOutput()
		if err != nil {
			t.Fatalf("list the rules: %v: %s", err, out)
		}
		return string(out)
	}
	const established, listening = 1, 10
	loopback, own, peer, all := []byte{127, 0, 0, 1}, []byte{192, 0, 2, 1}, []byte{192, 0, 2, 2}, []byte{0, 0, 0, 0}
	image := []byte("magicnum")
	for _, r := range [][]byte{
		socketRecord(established, 80, 4000, own, peer),
		socketRecord(established, 81, 4001, loopback, loopback), socketRecord(established, 4001, 81, loopback, loopback), // both ends are the container's
		socketRecord(listening, 80, 0, own, all), socketRecord(listening, 80, 0, own, all), // share a port
	} {
		if err := proto.Unmarshal(r, &fdinfo.FileEntry{}); err != nil {
			t.Fatal(err)
		}
		image = append(append(image, byte(len(r)), 0, 0, 0), r...)
	}
	network := func(path string) *specs.Spec {
		return &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: path}}}}
	}
	for name, test := range map[string]struct {
		path          string
		joined, alone bool
	}{"joined": {path: path, joined: true}, "of its own": {}, "alone": {path: path, alone: true}} {
		t.Run(name, func(t *testing.T) {
			c, _ := member(t, network(test.path), nil)
			if err := os.WriteFile(filepath.Join(c.restore, "files.img"), image, 0o600); err != nil {
				t.Fatal(err)
			}
			if test.alone {
				c.prepared.Together = nil
			}
			if err := c.raiseFence(); err != nil {
				t.Fatal(err)
			}
			if (c.barrier != nil) != test.joined {
				t.Fatalf("before CRIU begins, the fence is %v", c.barrier)
			}
			if !test.joined {
				if err := c.fenceOwn(holder.Process.Pid); err != nil {
					t.Fatal(err)
				}
			}
			found := rules()
			for text, want := range map[string]bool{"192.0.2.1 . 80 . 192.0.2.2 . 4000": !test.alone, "127.0.0.1": false, "192.0.2.1 . 80 }": !test.alone} {
				if strings.Contains(found, text) != want {
					t.Errorf("of %q the rules have %v: %s", text, !want, found)
				}
			}
			for range 2 {
				if err := c.lowerFence(); err != nil {
					t.Fatal(err)
				}
			}
			if left := rules(); left != "" {
				t.Errorf("left are %s", left)
			}
		})
	}
}
