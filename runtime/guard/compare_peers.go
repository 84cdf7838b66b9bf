package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
)

// peers refuses connections of unix sockets to others than those of the container's network namespace: CRIU connects as root, and the other end sees that. A container in the host's network
// namespace is not told apart from the host.
func (k *check) peers(pids []int) error {
	if own, shared := k.wanted(specs.NetworkNamespace, "net"); !own || shared {
		return nil
	}
	has := map[uint32]bool{} // sockets of the container's processes, by inode
	for _, pid := range pids {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			return err
		}
		for _, link := range links {
			var inode uint32
			if name, err := os.Readlink(link); err == nil && strings.HasPrefix(name, "socket:") {
				if _, err := fmt.Sscanf(name, "socket:[%d]", &inode); err == nil {
					has[inode] = true
				}
			}
		}
	}
	if len(has) == 0 {
		return nil
	}
	var all map[uint32]unixSocket
	if err := criu.InNamespace(unix.CLONE_NEWNET, fmt.Sprintf("/proc/%d/ns/net", pids[0]), func() (err error) {
		all, err = unixSockets()
		return err
	}); err != nil {
		return fmt.Errorf("look at the sockets of a restored container: %w", err)
	}
	listening := map[[2]uint32]bool{}
	for _, s := range all {
		listening[s.file] = listening[s.file] || s.listens
	}
	for inode, s := range all {
		if !has[inode] || s.peer == 0 || has[s.peer] {
			continue
		}
		// One that no process has may be on its way to a process, in a message. One that was accepted is of the namespace of the process that connects, but the one that listens is not.
		if peer, inside := all[s.peer]; !inside || peer.file != [2]uint32{} && !listening[peer.file] {
			k.differ(Privileges, "a connection to a unix socket outside of its network namespace")
		}
	}
	return nil
}

// unixSocket is what the kernel says of one.
type unixSocket struct {
	peer    uint32    // inode of what it is connected to; 0: nothing
	file    [2]uint32 // inode and device of its name, or of the one that has accepted it
	listens bool
}

// unixSockets lists the unix sockets of this thread's network namespace by their inodes. Source: sock_diag(7).
func unixSockets() (all map[uint32]unixSocket, err error) {
	const (
		sockDiagByFamily      = 20
		showFile, attrFile    = 0x2, 1
		showPeer, attrPeer    = 0x4, 2
		requestSize, showAt   = 24, 12
		messageSize, attrHead = 16, 4
		stateAt, inodeAt      = 2, 4
		listens               = 10 // TCP_LISTEN
		header                = unix.SizeofNlMsghdr
	)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	order := binary.NativeEndian
	request := make([]byte, header+requestSize)
	order.PutUint32(request, uint32(len(request)))
	order.PutUint16(request[4:], sockDiagByFamily)
	order.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request[header] = unix.AF_UNIX
	order.PutUint32(request[header+4:], ^uint32(0)) // in all states
	order.PutUint32(request[header+showAt:], showFile|showPeer)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	all = map[uint32]unixSocket{}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		for rest := buf[:n]; len(rest) >= header; {
			size := int(order.Uint32(rest))
			if size < header || size > len(rest) {
				return nil, errors.New("a message of netlink that is cut short")
			}
			kind, message := order.Uint16(rest[4:]), rest[header:size]
			rest = rest[min(len(rest), (size+3)&^3):]
			switch {
			case kind == unix.NLMSG_DONE:
				return all, nil
			case kind == unix.NLMSG_ERROR && len(message) >= 4:
				return nil, os.NewSyscallError("sock_diag", unix.Errno(-int32(order.Uint32(message))))
			case kind != sockDiagByFamily || len(message) < messageSize:
				continue
			}
			socket := unixSocket{listens: message[stateAt] == listens}
			for attrs := message[messageSize:]; len(attrs) >= attrHead; {
				length := int(order.Uint16(attrs))
				if length < attrHead || length > len(attrs) {
					break
				}
				switch value := attrs[attrHead:length]; {
				case order.Uint16(attrs[2:]) == attrPeer && len(value) >= 4:
					socket.peer = order.Uint32(value)
				case order.Uint16(attrs[2:]) == attrFile && len(value) >= 8:
					socket.file = [2]uint32{order.Uint32(value), order.Uint32(value[4:])}
				}
				attrs = attrs[min(len(attrs), (length+3)&^3):]
			}
			all[order.Uint32(message[inodeAt:])] = socket
		}
	}
}
