package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	skinet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/failure"
)

// The rules that refuse to give sockets other addresses.
const (
	FamilyRule  = "address-family"  // the old address is of IPv4 and the new one of IPv6, or the reverse
	AddressRule = "address-renewed" // an address belongs to no single host of the network
)

// filesImage has a record of each open file. A record of type INETSK is a socket of IPv4 or IPv6. CRIU 4.2 writes sockets nowhere else. It still reads
// inetsk.img of older versions, which the review of images (image/trust) refuses.
const filesImage = "files.img"

// States of sockets. Source: Linux, include/net/tcp_states.h.
const (
	tcpClosed    = 7
	tcpListening = 10
)

// Connection is a TCP connection as one of its two ends has it.
type Connection struct{ Local, Remote netip.AddrPort }

// Connections returns the TCP connections and the addresses of the TCP listeners that the images in dir have. An IPv6 socket with a v4-mapped address sends IPv4 packets; its addresses are returned as IPv4.
// A listener that takes connections to all addresses of both families is returned once for each of them.
func Connections(dir string) (connections []Connection, listeners []netip.AddrPort, err error) {
	err = eachRecord(dir, filesImage, func(data []byte) error {
		s, err := inetSocket(data)
		if err != nil || s == nil || s.GetProto() != unix.IPPROTO_TCP {
			return err
		}
		local, remote, err := ends(s)
		switch {
		case err != nil:
			return err
		case s.GetState() == tcpListening:
			listeners = append(listeners, local)
			if local.Addr() == netip.IPv6Unspecified() && !s.GetV6Only() {
				listeners = append(listeners, netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port()))
			}
		case s.GetState() != tcpClosed && remote.Port() != 0:
			connections = append(connections, Connection{Local: local, Remote: remote})
		}
		return nil
	})
	return connections, listeners, err
}

// Readdress replaces the addresses of the sockets in the images in dir: each local or remote address that is in addresses becomes the one that it leads to. It is mapped once, so that two addresses may change places.
// All sockets of IPv4 and IPv6 are changed, of TCP, UDP and others, whether they listen, are connected or only bound. A socket of IPv6 with an IPv4 address (v4-mapped) keeps this form. Sockets without any of
// the addresses, and all other files, stay byte for byte. The image is replaced whole or not at all.
//
// What else may hold addresses stays as it is:
//   - Ports, TCP's sequence numbers and what waits in queues (tcp-stream-*.img): a connection goes on with them. They are without addresses.
//   - Names of devices to which a socket is bound (so_bound_dev), or on which its link-local address is (ifname): the new host has a device of this name, or CRIU fails. Link-local addresses count on one link alone,
//     so that none is mapped.
//   - Options of IP (ip_opts): they have no address. CRIU 4.2 saves no multicast memberships.
//   - Filters that a program has attached (so_filter): they are code of the program's own.
//   - Packet sockets: they have addresses of the link layer. Netlink sockets have port numbers of processes.
//   - Devices, addresses, routes and firewall rules of a network namespace (netdev-*.img, ifaddr-*.img, route-*.img, sit tunnels): runc has CRIU leave networks alone, and the network of the new host counts.
//   - Memory: the program learns the addresses from cryo (shim/CONTRACT.md).
func Readdress(dir string, addresses map[netip.Addr]netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	mapped := make(map[netip.Addr]netip.Addr, len(addresses))
	for was, is := range addresses {
		was, is = was.Unmap(), is.Unmap()
		if err := checkRenewed(was, is); err != nil {
			return err
		}
		if other, twice := mapped[was]; twice && other != is {
			return failure.New(errdefs.ErrInvalidArgument, "give each address one new address", "%s: %s cannot become both %s and %s", AddressRule, was, other, is).By(AddressRule)
		}
		mapped[was] = is
	}
	file := filepath.Join(dir, filesImage)
	image, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no process has a file open
	}
	if err != nil {
		return fmt.Errorf("read CRIU's images: %w", err)
	}
	readdressed, changed, err := readdress(image, mapped)
	if err != nil {
		return fmt.Errorf("give the sockets of CRIU's image %s other addresses: %w", filesImage, err)
	}
	if !changed {
		return nil
	}
	if err := replaceImage(file, readdressed); err != nil {
		return fmt.Errorf("write CRIU's image %s: %w", filesImage, err)
	}
	return nil
}

// checkRenewed refuses an address that cannot take the place of another.
func checkRenewed(was, is netip.Addr) error {
	if was.IsValid() && is.IsValid() && was.Is4() != is.Is4() {
		return failure.New(errdefs.ErrFailedPrecondition, "restore the container where it has an address of the same family, IPv4 or IPv6",
			"%s: connections of %s cannot go on as those of %s: a socket stays of its family", FamilyRule, was, is).By(FamilyRule)
	}
	for _, a := range []netip.Addr{was, is} {
		if !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Zone() != "" {
			return failure.New(errdefs.ErrInvalidArgument, "map only addresses by which another host reaches the container",
				"%s: %s cannot become %s: %s is no address of one host in a network", AddressRule, was, is, a).By(AddressRule)
		}
	}
	return nil
}

// readdress returns an image of files with other addresses of sockets, and reports whether any has changed.
func readdress(image []byte, addresses map[netip.Addr]netip.Addr) (_ []byte, changed bool, err error) {
	if len(image) < imageHead {
		return nil, false, fmt.Errorf("it has no head: %w", errdefs.ErrDataLoss)
	}
	result := append(make([]byte, 0, len(image)), image[:imageHead]...)
	err = walkRecords(image, func(data []byte) error {
		record, err := readdressRecord(data, addresses)
		if err != nil {
			return err
		}
		if record == nil {
			record = data
		} else {
			changed = true
		}
		result = append(binary.LittleEndian.AppendUint32(result, uint32(len(record))), record...)
		return nil
	})
	return result, changed, err
}

// readdressRecord returns the record of a file with other addresses; nil: it has none of them.
func readdressRecord(data []byte, addresses map[netip.Addr]netip.Addr) ([]byte, error) {
	s, err := inetSocket(data)
	if err != nil || s == nil {
		return nil, err
	}
	changed := false
	for _, words := range [][]uint32{s.GetSrcAddr(), s.GetDstAddr()} {
		was, err := address(s.GetFamily(), words)
		if err != nil {
			return nil, err
		}
		is, ok := addresses[was.Unmap()]
		if !ok || is == was.Unmap() {
			continue
		}
		changed = true
		if was.Is4In6() {
			is = netip.AddrFrom16(is.As16())
		}
		bytes := is.AsSlice()
		for i := range len(bytes) / wordSize {
			words[i] = binary.NativeEndian.Uint32(bytes[i*wordSize:])
		}
	}
	if !changed {
		return nil, nil
	}
	f := &fdinfo.FileEntry{}
	if err := proto.Unmarshal(data, f); err != nil {
		return nil, err
	}
	f.Isk = s
	return proto.Marshal(f)
}

// wordSize is the size of the numbers in which CRIU keeps addresses, in bytes. Each has four bytes of an address as they are in memory. Source: CRIU 4.2, criu/sk-inet.c, do_dump_one_inet_fd.
const wordSize = 4

// inetSocket returns the socket of IPv4 or IPv6 that the record of a file has; nil: the file is another. Most files are no sockets, and are not read.
func inetSocket(data []byte) (*skinet.InetSkEntry, error) {
	const field protowire.Number = 4 // isk of file_entry
	var s *skinet.InetSkEntry
	for rest := data; len(rest) > 0; {
		number, kind, tag := protowire.ConsumeTag(rest)
		if tag < 0 {
			return nil, protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[tag:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		if number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(rest[tag:])
			s = &skinet.InetSkEntry{}
			if err := proto.Unmarshal(value, s); err != nil {
				return nil, err
			}
		}
		rest = rest[tag+size:]
	}
	return s, nil
}

// ends returns a socket's addresses with their ports, those of IPv4 as such.
func ends(s *skinet.InetSkEntry) (local, remote netip.AddrPort, err error) {
	src, err := address(s.GetFamily(), s.GetSrcAddr())
	if err != nil {
		return local, remote, err
	}
	dst, err := address(s.GetFamily(), s.GetDstAddr())
	return netip.AddrPortFrom(src.Unmap(), uint16(s.GetSrcPort())), netip.AddrPortFrom(dst.Unmap(), uint16(s.GetDstPort())), err
}

// address returns an address as CRIU keeps it. Old versions of CRIU keep four numbers for IPv4, too. Source: CRIU 4.2, criu/sk-inet.c, inet_validate_address.
func address(family uint32, words []uint32) (netip.Addr, error) {
	var b [16]byte
	switch {
	case family == unix.AF_INET && len(words) > 0:
		binary.NativeEndian.PutUint32(b[:], words[0])
		return netip.AddrFrom4([4]byte(b[:4])), nil
	case family == unix.AF_INET6 && len(words) == len(b)/wordSize:
		for i, w := range words {
			binary.NativeEndian.PutUint32(b[i*wordSize:], w)
		}
		return netip.AddrFrom16(b), nil
	}
	return netip.Addr{}, fmt.Errorf("a socket of the family %d has an address of %d numbers", family, len(words))
}

// replaceImage writes an image anew for the users who may read the old one. It is there whole or not at all.
func replaceImage(file string, image []byte) error {
	var old unix.Stat_t
	if err := unix.Stat(file, &old); err != nil {
		return err
	}
	staged := file + ".new"
	err := os.WriteFile(staged, image, 0o600)
	if err == nil {
		err = os.Chown(staged, int(old.Uid), int(old.Gid))
	}
	if err == nil {
		err = os.Chmod(staged, os.FileMode(old.Mode&0o777))
	}
	if err == nil {
		err = os.Rename(staged, file)
	}
	if err != nil {
		_ = os.Remove(staged)
	}
	return err
}
