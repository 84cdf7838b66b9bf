package runc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// Fence keeps packets from TCP sockets, by a table of nftables that ends with it. The kernel removes the table when this process dies.
type Fence struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// fencePrefix begins the names of tables.
const fencePrefix = "cryo-"

// Fence drops each packet to and from connections, and each TCP packet to and from the addresses of listeners. Other sockets of the network, and what the host forwards,
// are left alone.
//
// Its error is FailedPrecondition where the kernel cannot do it.
func (n *Network) Fence(s Sockets) (*Fence, error) { return n.fence(matches(s), false) }

// TurnAway drops the packets by which peers ask listeners for a connection. Connections that are there, or about to be made, are left alone. A peer asks again after a second.
//
// Its error is FailedPrecondition where the kernel cannot do it.
func (n *Network) TurnAway(listeners []netip.AddrPort) (*Fence, error) {
	return n.fence(matches(Sockets{Listeners: listeners}), true)
}

// fence makes a fence that drops packets. asking limits them to the first packets of connections that peers ask for.
func (n *Network) fence(packets []match, asking bool) (*Fence, error) {
	f := &Fence{table: &nftables.Table{Name: fencePrefix + strings.ToLower(rand.Text()), Family: nftables.TableFamilyINet}}
	var link *netlink.Conn
	var err error
	f.conn, err = nftables.New(nftables.WithNetNSFd(int(n.file.Fd())), nftables.AsLasting(), nftables.WithSockOptions(func(conn *netlink.Conn) error {
		link = conn
		return nil
	}))
	if err != nil {
		return nil, noFence(err)
	}
	if err := addOwned(link, f.table); err != nil {
		return nil, errors.Join(noFence(err), f.conn.CloseLasting())
	}
	if err := f.drop(packets, asking); err != nil {
		return nil, errors.Join(fmt.Errorf("cut connections by nftables: %w", err), f.Close())
	}
	return f, nil
}

// lingerTime is how long the connection of a fence that is gone stays open. Closing it has the kernel wait for memory of removed tables (10 to 100 ms), and no process changes tables of that network meanwhile: other containers of
// it, which are let go on in these moments too, would stand still for longer.
const lingerTime = 2 * time.Second

// Close removes the fence. nil is none.
func (f *Fence) Close() error {
	if f == nil {
		return nil
	}
	f.conn.DelTable(f.table)
	deleted := f.conn.Flush()
	if deleted == nil {
		time.AfterFunc(lingerTime, func() { _ = f.conn.CloseLasting() })
		return nil
	}
	// The kernel removes the table with the connection, too.
	if err := f.conn.CloseLasting(); err != nil {
		return failure.New(errdefs.ErrInternal, "remove it in the container's network: nft delete table inet "+f.table.Name+"; if the table is owned, end the container's shim",
			"let connections go on that a checkpoint has cut: %w", errors.Join(deleted, err))
	}
	return nil
}

// noFence returns the error of a kernel that cannot make a fence.
func noFence(err error) error {
	var kind error = errdefs.ErrInternal
	if absent(err) {
		kind = errdefs.ErrFailedPrecondition
	}
	return failure.New(kind, "use Linux 5.12 or later with nf_tables: CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET, modprobe nf_tables", "cut connections by a table of nftables that has an owner: %w", err)
}

// tableOwner is NFT_TABLE_F_OWNER of Linux, include/uapi/linux/netfilter/nf_tables.h.
const tableOwner = 2

// addOwned adds a table that the kernel removes when a connection is closed. Package nftables adds tables without flags only.
func addOwned(link *netlink.Conn, table *nftables.Table) error {
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(table.Name), 0)},
		{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, tableOwner)},
	})
	if err != nil {
		return err
	}
	message := func(kind int, flags netlink.HeaderFlags, family byte, resource uint16, data []byte) netlink.Message {
		head := binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags}, Data: append(head, data...)}
	}
	_, err = link.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil),
		message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, netlink.Acknowledge|netlink.Create|netlink.Excl, byte(table.Family), 0, attributes),
		message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil),
	})
	if err != nil {
		return err
	}
	_, err = link.Receive() // the acknowledgement, or the error
	return err
}

// within calls do with the container's network.
func (c Container) within(do func(*Network) error) error {
	s, err := c.state()
	if err != nil {
		return err
	}
	n, err := OpenNetwork(s.PID)
	if err != nil {
		return err
	}
	return errors.Join(do(n), n.Close())
}

// Sockets lists the container's TCP sockets: see [Network.Sockets].
func (c Container) Sockets(ctx context.Context) (s Sockets, err error) {
	pids, err := c.Processes(ctx)
	if err != nil {
		return s, err
	}
	err = c.within(func(n *Network) (err error) {
		s, err = n.Sockets(pids)
		return err
	})
	return s, err
}

// Fence is [Network.Fence] in the container's network.
func (c Container) Fence(s Sockets) (f io.Closer, err error) {
	err = c.within(func(n *Network) (err error) {
		f, err = n.Fence(s)
		return err
	})
	return f, err
}

// TurnAway is [Network.TurnAway] in the container's network.
func (c Container) TurnAway(listeners []netip.AddrPort) (f io.Closer, err error) {
	err = c.within(func(n *Network) (err error) {
		f, err = n.TurnAway(listeners)
		return err
	})
	return f, err
}
