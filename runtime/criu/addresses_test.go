package criu

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	skinet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	skopts "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-opts"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/failure"
)

// words returns an address as CRIU writes it: four bytes in each number, as they are in memory.
func words(a netip.Addr) (all []uint32) {
	for b := a.AsSlice(); len(b) > 0; b = b[4:] {
		all = append(all, binary.NativeEndian.Uint32(b))
	}
	return all
}

// inetFile makes the record of a socket with two ends, as 192.0.2.1:80. The family is that of the addresses.
func inetFile(id uint32, protocol, state uint32, local, remote string) *fdinfo.FileEntry {
	l, r := netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote)
	zero, family := new(uint32), uint32(unix.AF_INET)
	if l.Addr().Is6() {
		family = unix.AF_INET6
	}
	n := proto.Uint32
	return &fdinfo.FileEntry{Type: fdinfo.FdTypes_INETSK.Enum(), Id: n(id), Isk: &skinet.InetSkEntry{
		Id: n(id), Ino: n(id + 1000), Family: n(family), Type: n(unix.SOCK_STREAM), Proto: n(protocol), State: n(state), Flags: n(2), Backlog: n(5),
		SrcPort: n(uint32(l.Port())), DstPort: n(uint32(r.Port())), SrcAddr: words(l.Addr()), DstAddr: words(r.Addr()), Ifname: proto.String("eth0"),
		Fown: &fown.FownEntry{Uid: zero, Euid: zero, Signum: zero, PidType: zero, Pid: zero},
		Opts: &skopts.SkOptsEntry{SoSndbuf: n(1), SoRcvbuf: n(2), SoSndTmoSec: new(uint64), SoSndTmoUsec: new(uint64), SoRcvTmoSec: new(uint64), SoRcvTmoUsec: new(uint64), SoBoundDev: proto.String("eth0")},
	}}
}

const (
	established = 1
	closing     = 8 // TCP_CLOSE_WAIT
	none4       = "0.0.0.0:0"
	none6       = "[::]:0"
)

// writeFiles writes an image of files, with one that is no socket before them, in an encoding that is not the shortest.
func writeFiles(t *testing.T, files ...*fdinfo.FileEntry) (dir string, plain []byte) {
	t.Helper()
	zero := new(uint32)
	other, err := proto.Marshal(&fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: zero, Reg: &regfile.RegFileEntry{Id: zero, Flags: zero, Pos: new(uint64), Fown: &fown.FownEntry{Uid: zero, Euid: zero, Signum: zero, PidType: zero, Pid: zero}, Name: proto.String("/192.0.2.1")}})
	if err != nil {
		t.Fatal(err)
	}
	other = append(other, 0x10, 0x80, 0x00) // the id again, with a byte too many
	image := append(binary.LittleEndian.AppendUint32([]byte("magicnum"), uint32(len(other))), other...)
	for _, f := range files {
		record, err := proto.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		image = append(binary.LittleEndian.AppendUint32(image, uint32(len(record))), record...)
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, filesImage), image, 0o640); err != nil {
		t.Fatal(err)
	}
	return dir, other
}

func filesIn(t *testing.T, dir string) (all []*fdinfo.FileEntry) {
	t.Helper()
	image, err := os.ReadFile(filepath.Join(dir, filesImage))
	if err != nil {
		t.Fatal(err)
	}
	if all, err = decodeImage[fdinfo.FileEntry](image); err != nil {
		t.Fatal(err)
	}
	return all
}

func addrs(pairs ...string) map[netip.Addr]netip.Addr {
	all := map[netip.Addr]netip.Addr{}
	for i := 0; i < len(pairs); i += 2 {
		all[netip.MustParseAddr(pairs[i])] = netip.MustParseAddr(pairs[i+1])
	}
	return all
}

func TestConnections(t *testing.T) {
	v6only := inetFile(9, unix.IPPROTO_TCP, tcpListening, "[::]:83", none6)
	v6only.Isk.V6Only = proto.Bool(true)
	old := inetFile(10, unix.IPPROTO_TCP, established, "192.0.2.1:86", "192.0.2.9:7")
	old.Isk.SrcAddr, old.Isk.DstAddr = append(old.Isk.SrcAddr, 0, 0, 0), append(old.Isk.DstAddr, 0, 0, 0) // of CRIU 0.1
	dir, _ := writeFiles(t,
		inetFile(1, unix.IPPROTO_TCP, established, "192.0.2.1:80", "192.0.2.2:4000"),
		inetFile(2, unix.IPPROTO_TCP, closing, "[2001:db8::1]:80", "[2001:db8::2]:4001"),
		inetFile(3, unix.IPPROTO_TCP, established, "[::ffff:192.0.2.1]:80", "[::ffff:192.0.2.2]:4002"),
		inetFile(4, unix.IPPROTO_TCP, tcpListening, "192.0.2.1:80", none4),
		inetFile(5, unix.IPPROTO_TCP, tcpListening, "[::]:81", none6),
		inetFile(6, unix.IPPROTO_TCP, tcpClosed, "192.0.2.1:82", none4),
		inetFile(7, unix.IPPROTO_UDP, established, "192.0.2.1:53", "192.0.2.2:53"),
		inetFile(8, unix.IPPROTO_TCP, tcpListening, "[::ffff:192.0.2.1]:84", none6),
		v6only, old)
	connections, listeners, err := Connections(dir)
	if err != nil {
		t.Fatal(err)
	}
	ap := netip.MustParseAddrPort
	if want := []Connection{
		{ap("192.0.2.1:80"), ap("192.0.2.2:4000")}, {ap("[2001:db8::1]:80"), ap("[2001:db8::2]:4001")}, {ap("192.0.2.1:80"), ap("192.0.2.2:4002")}, {ap("192.0.2.1:86"), ap("192.0.2.9:7")},
	}; !reflect.DeepEqual(connections, want) {
		t.Errorf("connections %v, want %v", connections, want)
	}
	if want := []netip.AddrPort{ap("192.0.2.1:80"), ap("[::]:81"), ap("0.0.0.0:81"), ap("192.0.2.1:84"), ap("[::]:83")}; !reflect.DeepEqual(listeners, want) {
		t.Errorf("listeners %v, want %v", listeners, want)
	}
	if c, l, err := Connections(t.TempDir()); c != nil || l != nil || err != nil {
		t.Errorf("without images: %v, %v, %v", c, l, err)
	}
}

func TestReaddress(t *testing.T) {
	const udp, raw = unix.IPPROTO_UDP, unix.IPPROTO_ICMP
	dir, plain := writeFiles(t,
		inetFile(1, unix.IPPROTO_TCP, established, "192.0.2.1:80", "192.0.2.2:4000"),
		inetFile(2, unix.IPPROTO_TCP, established, "[::ffff:192.0.2.2]:4000", "[::ffff:192.0.2.1]:80"),
		inetFile(3, unix.IPPROTO_TCP, tcpListening, "192.0.2.1:80", none4),
		inetFile(4, udp, tcpClosed, "192.0.2.2:53", none4),
		inetFile(5, raw, tcpClosed, "0.0.0.0:1", "192.0.2.1:0"),
		inetFile(6, unix.IPPROTO_TCP, established, "[2001:db8::1]:80", "[2001:db8::9]:1"),
		inetFile(7, unix.IPPROTO_TCP, established, "192.0.2.9:80", "192.0.2.8:1"),
		inetFile(8, unix.IPPROTO_TCP, tcpListening, "[::]:80", none6))
	file := filepath.Join(dir, filesImage)
	if err := os.Chown(file, 7, 8); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	was := filesIn(t, dir)
	if err := Readdress(dir, addrs("192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.1", "2001:db8::1", "2001:db8::2")); err != nil {
		t.Fatal(err)
	}
	is := filesIn(t, dir)
	if len(is) != len(was) {
		t.Fatalf("%d files, and %d before", len(is), len(was))
	}
	for i, want := range []struct{ local, remote string }{
		{"192.0.2.2:80", "192.0.2.1:4000"}, {"[::ffff:192.0.2.1]:4000", "[::ffff:192.0.2.2]:80"}, {"192.0.2.2:80", none4}, {"192.0.2.1:53", none4}, {"0.0.0.0:1", "192.0.2.2:0"},
		{"[2001:db8::2]:80", "[2001:db8::9]:1"}, {"192.0.2.9:80", "192.0.2.8:1"}, {"[::]:80", none6},
	} {
		s := was[i+1].GetIsk() // the rest stays
		expected := inetFile(s.GetId(), s.GetProto(), s.GetState(), want.local, want.remote)
		if !proto.Equal(is[i+1], expected) {
			t.Errorf("the socket %d is %v, want %v", i+1, is[i+1], expected)
		}
	}
	image, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(image, plain) || string(image[:imageHead]) != "magicnum" {
		t.Errorf("a file that is no socket is another: %q, %v", image, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("the image is %v, %v", info, err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil || os.Geteuid() == 0 && (stat.Uid != 7 || stat.Gid != 8) {
		t.Errorf("the image is of the user %d and the group %d, %v", stat.Uid, stat.Gid, err)
	}
	if err := Readdress(dir, addrs("192.0.2.1", "192.0.2.1", "203.0.113.1", "203.0.113.2")); err != nil {
		t.Error(err)
	}
	var again unix.Stat_t
	if err := unix.Stat(file, &again); err != nil || again.Ino != stat.Ino {
		t.Errorf("an image without any of the addresses is written anew, %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := Readdress(t.TempDir(), addrs("192.0.2.1", "192.0.2.2")); err != nil {
		t.Errorf("without images: %v", err)
	}
}

// TestReaddressRefuses has addresses that no socket can get, and damaged images. Nothing is written.
func TestReaddressRefuses(t *testing.T) {
	dir, _ := writeFiles(t, inetFile(1, unix.IPPROTO_TCP, established, "192.0.2.1:80", "192.0.2.2:4000"))
	file := filepath.Join(dir, filesImage)
	image, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		addresses map[netip.Addr]netip.Addr
		kind      func(error) bool
		rule      string
	}{
		"another family":    {addrs("192.0.2.1", "2001:db8::1"), errdefs.IsFailedPrecondition, FamilyRule},
		"the family before": {addrs("2001:db8::1", "192.0.2.1"), errdefs.IsFailedPrecondition, FamilyRule},
		"loopback":          {addrs("127.0.0.1", "192.0.2.1"), errdefs.IsInvalidArgument, AddressRule},
		"link-local":        {addrs("2001:db8::1", "fe80::1"), errdefs.IsInvalidArgument, AddressRule},
		"all":               {addrs("192.0.2.1", "0.0.0.0"), errdefs.IsInvalidArgument, AddressRule},
		"multicast":         {addrs("224.0.0.1", "192.0.2.1"), errdefs.IsInvalidArgument, AddressRule},
		"none":              {map[netip.Addr]netip.Addr{netip.MustParseAddr("192.0.2.1"): {}}, errdefs.IsInvalidArgument, AddressRule},
		"two":               {addrs("192.0.2.1", "192.0.2.3", "::ffff:192.0.2.1", "192.0.2.4"), errdefs.IsInvalidArgument, AddressRule},
	} {
		if err := Readdress(dir, test.addresses); !test.kind(err) || failure.Rule(err) != test.rule {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, image) {
		t.Errorf("a refusal has changed the image, %v", err)
	}
	short := inetFile(1, unix.IPPROTO_TCP, established, "[2001:db8::1]:80", "[2001:db8::2]:4000")
	short.Isk.DstAddr = short.Isk.DstAddr[:3]
	record, err := proto.Marshal(short)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string][]byte{"cut": image[:len(image)-1], "short": image[:7], "nonsense": append(binary.LittleEndian.AppendUint32([]byte("magicnum"), 1), 0xff),
		"address": append(binary.LittleEndian.AppendUint32([]byte("magicnum"), uint32(len(record))), record...)} {
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Readdress(dir, addrs("192.0.2.1", "192.0.2.2")); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: Readdress returns %v", name, err)
		}
		if _, _, err := Connections(dir); !errdefs.IsDataLoss(err) && name != "short" {
			t.Errorf("%s: Connections returns %v", name, err)
		}
	}
}
