package runc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"github.com/mdlayher/netlink"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// Connection is a TCP connection as a socket of the container has it. Addresses of IPv4 that IPv6 maps are those of IPv4.
type Connection struct{ Local, Remote netip.AddrPort }

// Sockets are the TCP sockets of a container's processes in its network.
type Sockets struct {
	// Connections are those of the processes in any state but the last, TIME_WAIT, and those of Closing.
	Connections []Connection
	// Listeners are the addresses at which the processes listen. One that takes IPv6 and IPv4 is there twice, as [::] and 0.0.0.0.
	Listeners []netip.AddrPort
	// Waiting are connections that the kernel has made with the listeners, and that no process has accepted yet. CRIU drops them, although each has a peer.
	Waiting []Connection
	// Arriving are connections with the listeners that the kernel is about to make. The peer may already be connected.
	Arriving []Connection
	// Closing are connections that no process has any more, whose last data or end the peer has not acknowledged yet. In a network that is shared they are not known.
	Closing []Connection
	// Unacknowledged is the number of segments that Connections have sent and their peers have not acknowledged yet.
	Unacknowledged int
}

// States of TCP that sock_diag reports, from Linux, include/net/tcp_states.h. The sockets of the states that are not among seen are of no connection.
const seen = 1<<unix.BPF_TCP_ESTABLISHED | 1<<unix.BPF_TCP_SYN_SENT | 1<<unix.BPF_TCP_SYN_RECV | 1<<unix.BPF_TCP_FIN_WAIT1 | 1<<unix.BPF_TCP_FIN_WAIT2 |
	1<<unix.BPF_TCP_CLOSE_WAIT | 1<<unix.BPF_TCP_LAST_ACK | 1<<unix.BPF_TCP_LISTEN | 1<<unix.BPF_TCP_CLOSING | 1<<unix.BPF_TCP_NEW_SYN_RECV

// Sockets lists the TCP sockets that processes have in the network. The list is exact if the processes stand still.
func (n *Network) Sockets(pids []int) (s Sockets, err error) {
	own, err := inodes(pids)
	if err != nil {
		return s, err
	}
	all, err := n.tcp()
	if err != nil {
		return s, err
	}
	for _, socket := range all {
		if socket.state == unix.BPF_TCP_LISTEN && own[socket.inode] {
			s.Listeners = append(s.Listeners, socket.listens()...)
		}
	}
	for _, socket := range all {
		switch {
		case socket.state == unix.BPF_TCP_LISTEN:
		case own[socket.inode]:
			s.Connections = append(s.Connections, socket.connection)
			s.Unacknowledged += socket.unacknowledged
		case socket.inode != 0: // of a process that is not the container's
		case socket.state == unix.BPF_TCP_SYN_RECV:
			if s.takes(socket.connection.Local) {
				s.Arriving = append(s.Arriving, socket.connection)
			}
		case socket.state == unix.BPF_TCP_ESTABLISHED || socket.state == unix.BPF_TCP_CLOSE_WAIT:
			if s.takes(socket.connection.Local) {
				s.Waiting = append(s.Waiting, socket.connection)
			}
		case n.shared:
		case socket.state == unix.BPF_TCP_FIN_WAIT1 || socket.state == unix.BPF_TCP_CLOSING || socket.state == unix.BPF_TCP_LAST_ACK:
			s.Closing = append(s.Closing, socket.connection)
			s.Connections = append(s.Connections, socket.connection)
			s.Unacknowledged += socket.unacknowledged
		}
	}
	return s, nil
}

// takes reports whether a listener takes connections to an address.
func (s Sockets) takes(local netip.AddrPort) bool {
	for _, at := range s.Listeners {
		if at == local || at.Port() == local.Port() && at.Addr().IsUnspecified() && at.Addr().Is4() == local.Addr().Is4() {
			return true
		}
	}
	return false
}

// inodes returns the inodes of the sockets of processes.
func inodes(pids []int) (map[uint32]bool, error) {
	own := map[uint32]bool{}
	for _, pid := range pids {
		process, err := procfs.NewProc(pid)
		var targets []string
		if err == nil {
			targets, err = process.FileDescriptorTargets()
		}
		if errors.Is(err, fs.ErrNotExist) || err != nil && Ended(pid) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at the descriptors of process %d: %w", pid, err)
		}
		for _, target := range targets {
			number, is := strings.CutPrefix(target, "socket:[")
			if !is {
				continue
			}
			inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("look at the descriptors of process %d: %w", pid, err)
			}
			own[uint32(inode)] = true
		}
	}
	return own, nil
}

// tcpSocket is what the kernel reports of a TCP socket.
type tcpSocket struct {
	state          uint8
	connection     Connection // of a listener, Remote has no meaning
	inode          uint32     // 0: no process has it
	unacknowledged int
	only6          bool // a listener of IPv6 that does not take IPv4
}

// listens returns the addresses at which a listener takes connections.
func (s tcpSocket) listens() []netip.AddrPort {
	at := []netip.AddrPort{s.connection.Local}
	if s.connection.Local.Addr() == netip.IPv6Unspecified() && !s.only6 {
		at = append(at, netip.AddrPortFrom(netip.IPv4Unspecified(), s.connection.Local.Port()))
	}
	return at
}

// Parts of what sock_diag is asked and answers. Source: Linux, include/uapi/linux/sock_diag.h and inet_diag.h, inet_diag_req_v2 and inet_diag_msg.
const (
	diagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	diagInfo     = 2  // INET_DIAG_INFO
	diagOnly6    = 11 // INET_DIAG_SKV6ONLY
	diagAskSize  = 56
	diagSize     = 72
)

// tcp lists all TCP sockets of the network.
func (n *Network) tcp() (all []tcpSocket, err error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{NetNS: int(n.file.Fd())})
	if err != nil {
		return nil, noDiag(err)
	}
	defer conn.Close()
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		ask := make([]byte, diagAskSize)
		ask[0], ask[1], ask[2] = family, unix.IPPROTO_TCP, 1<<(diagInfo-1)
		binary.NativeEndian.PutUint32(ask[4:], seen)
		answers, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: diagByFamily, Flags: netlink.Request | netlink.Dump}, Data: ask})
		if err != nil {
			return nil, noDiag(err)
		}
		for _, answer := range answers {
			socket, err := parseDiag(answer.Data)
			if err != nil {
				return nil, fmt.Errorf("list TCP sockets: %w", err)
			}
			all = append(all, socket)
		}
	}
	return all, nil
}

// noDiag returns the error of a kernel that does not list sockets.
func noDiag(err error) error {
	var kind error = errdefs.ErrInternal
	if absent(err) {
		kind = errdefs.ErrFailedPrecondition
	}
	return failure.New(kind, "load the kernel's modules: modprobe inet_diag tcp_diag", "list TCP sockets by sock_diag: %w", err)
}

// parseDiag reads what the kernel reports of one socket.
func parseDiag(data []byte) (s tcpSocket, err error) {
	if len(data) < diagSize {
		return s, fmt.Errorf("the kernel's answer has %d bytes instead of %d: %w", len(data), diagSize, errdefs.ErrInternal)
	}
	address := func(port, addr int) netip.AddrPort {
		ip := netip.AddrFrom4([4]byte(data[addr:]))
		if data[0] == unix.AF_INET6 {
			ip = netip.AddrFrom16([16]byte(data[addr:])).Unmap()
		}
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(data[port:]))
	}
	s.state = data[1]
	s.connection = Connection{Local: address(4, 8), Remote: address(6, 24)}
	s.inode = binary.NativeEndian.Uint32(data[68:])
	attributes, err := netlink.NewAttributeDecoder(data[diagSize:])
	if err != nil {
		return s, err
	}
	for attributes.Next() {
		switch attributes.Type() {
		case diagOnly6:
			s.only6 = attributes.Uint8() != 0
		case diagInfo:
			const at = unsafe.Offsetof(unix.TCPInfo{}.Unacked)
			if info := attributes.Bytes(); len(info) >= int(at)+4 {
				s.unacknowledged = int(binary.NativeEndian.Uint32(info[at:]))
			}
		}
	}
	return s, attributes.Err()
}
