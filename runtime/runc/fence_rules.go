package runc

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// family is IPv4 or IPv6, and where its packets have what a fence looks at.
type family struct {
	name                string
	protocol            byte // NFPROTO_IPV4 or NFPROTO_IPV6
	address             nftables.SetDatatype
	source, destination uint32 // where the header has the addresses
	length              uint32 // of an address
}

var (
	ipv4 = family{name: "4", protocol: unix.NFPROTO_IPV4, address: nftables.TypeIPAddr, source: 12, destination: 16, length: 4}
	ipv6 = family{name: "6", protocol: unix.NFPROTO_IPV6, address: nftables.TypeIP6Addr, source: 8, destination: 24, length: 16}
)

// familyOf returns the family of an address.
func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// match is a set of packets: those whose ends, as far as they are looked at, are among keys.
type match struct {
	family
	kind    string // begins the set's name
	address bool   // the local address counts, else only the local port does
	remote  bool   // the remote address and port count
	keys    []nftables.SetElement
}

// matches returns the packets of sockets, in up to three sets for each family.
func matches(s Sockets) []match {
	connections, bound, ports := map[string]*match{}, map[string]*match{}, map[string]*match{}
	add := func(to map[string]*match, m match, ends ...netip.AddrPort) {
		if to[m.name] == nil {
			to[m.name] = &m
		}
		var key []byte
		for _, end := range ends {
			if m.address {
				key = append(key, end.Addr().AsSlice()...)
			}
			key = binary.BigEndian.AppendUint16(key, end.Port())
			if m.address {
				key = append(key, 0, 0) // a part of a key fills registers of four bytes
			}
		}
		to[m.name].keys = append(to[m.name].keys, nftables.SetElement{Key: key})
	}
	for _, c := range s.Connections {
		add(connections, match{family: familyOf(c.Local.Addr()), kind: "connections", address: true, remote: true}, c.Local, c.Remote)
	}
	for _, at := range s.Listeners {
		if at.Addr().IsUnspecified() {
			add(ports, match{family: familyOf(at.Addr()), kind: "ports"}, at)
		} else {
			add(bound, match{family: familyOf(at.Addr()), kind: "listeners", address: true}, at)
		}
	}
	var all []match
	for _, of := range []map[string]*match{connections, bound, ports} {
		for _, f := range []family{ipv4, ipv6} {
			if m := of[f.name]; m != nil {
				all = append(all, *m)
			}
		}
	}
	return all
}

// maxKeys bounds how many elements a message has: an attribute has at most 64 KiB.
const maxKeys = 1000

// set adds the set of a match, with all that is in it.
func (f *Fence) set(m match) (*nftables.Set, error) {
	kind := nftables.TypeInetService
	if m.address {
		parts := []nftables.SetDatatype{m.family.address, nftables.TypeInetService}
		if m.remote {
			parts = append(parts, parts...)
		}
		var err error
		if kind, err = nftables.ConcatSetType(parts...); err != nil {
			return nil, fmt.Errorf("make a set of addresses: %w", err)
		}
	}
	set := &nftables.Set{Table: f.table, Name: m.kind + m.name, KeyType: kind, Concatenation: m.address}
	if err := f.conn.AddSet(set, nil); err != nil {
		return nil, err
	}
	for keys := m.keys; len(keys) > 0; keys = keys[min(maxKeys, len(keys)):] {
		if err := f.conn.SetAddElements(set, keys[:min(maxKeys, len(keys))]); err != nil {
			return nil, err
		}
		if err := f.conn.Flush(); err != nil { // all at once might be more than the socket takes
			return nil, err
		}
	}
	return set, nil
}

// drop adds the rules that drop packets, all at once.
func (f *Fence) drop(packets []match, asking bool) error {
	sets := make([]*nftables.Set, len(packets))
	for i, m := range packets {
		var err error
		if sets[i], err = f.set(m); err != nil {
			return err
		}
	}
	for i, m := range packets {
		source, destination := end{m.source, 0}, end{m.destination, 2}
		f.rule("input", nftables.ChainHookInput, m, sets[i], destination, source, asking)
		if !asking {
			f.rule("output", nftables.ChainHookOutput, m, sets[i], source, destination, false)
		}
	}
	return f.conn.Flush()
}

// end is where the headers of IP and TCP have the address and the port of one end.
type end struct{ address, port uint32 }

// rule adds a rule to a chain, and the chain if it is not there yet. The hooks see packets of sockets of this network only, with the addresses that the sockets have:
// input after all translation, output before it.
func (f *Fence) rule(name string, hook *nftables.ChainHook, m match, set *nftables.Set, local, remote end, asking bool) {
	const first = unix.NFT_REG32_00
	chain := f.conn.AddChain(&nftables.Chain{Name: name, Table: f.table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRaw})
	all := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: first},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{m.protocol}},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{unix.IPPROTO_TCP}},
	}
	if asking {
		const flagsAt, syn, flags = 13, 0x02, 0x17 // SYN alone, of FIN, SYN, RST and ACK
		all = append(all,
			&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
			&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 1, Mask: []byte{flags}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{syn}})
	}
	ends := []end{local}
	if m.remote {
		ends = append(ends, remote)
	}
	register := uint32(first)
	for _, e := range ends {
		if m.address {
			all = append(all, &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: e.address, Len: m.length})
			register += m.length / 4
		}
		all = append(all, &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: e.port, Len: 2})
		register++
	}
	all = append(all, &expr.Lookup{SourceRegister: first, SetName: set.Name, SetID: set.ID}, &expr.Verdict{Kind: expr.VerdictDrop})
	f.conn.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: all})
}
