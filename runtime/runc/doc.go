// Package runc executes the container runtime for what the stock shim does not do itself: freezing, dumping with an
// abort that leaves the container running, and reading the runtime's own words for a failure.
//
// # Network lock
//
// This part removes CRIU's network lock from a container's network.
//
// CRIU keeps packets from a container while it dumps it, and lets them pass again when the dump has ended. A CRIU that is killed in
// between leaves its rules, and the container runs on without network. CRIU's rules are known by their names:
//
//   - with nftables, a table of the family inet called CRIU- and the beginning of an id that CRIU makes anew for each dump;
//   - with iptables and ip6tables, a chain CRIU in the table filter, and jumps to it from INPUT and OUTPUT.
//
// In a network namespace that CRIU shares, which is the host's, it locks single connections instead: with nftables in a table of that name, with
// iptables in rules that have no name. There, only the table of a dump whose id is known is removed.
//
// Source: CRIU 4.2, criu/net.c and criu/netfilter.c.
//
// # Fence
//
// This part lists a container's TCP sockets, and cuts them from the network before CRIU's lock is there and after it has gone ([Network.Sockets], [Network.Fence]). A fence is a
// table of nftables called cryo-, which belongs to this process: the kernel removes it when the process dies, and no other program can change it. It drops packets at the
// hooks of local sockets alone, by the addresses that the sockets have. A packet that a fence drops comes later, by TCP's own means.
package runc
