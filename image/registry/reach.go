package registry

import (
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// reach refuses connections to which a registry sends us, by a redirect or by naming a token service, where the address is nearer to this host than the
// registry: on this host, on its link (where clouds have their metadata), or in its private network.
type reach struct {
	address string       // of the registry, host:port
	own     atomic.Int32 // how near the registry is; 0: not known
}

// How near an address is. A registry may send us to what is as near as itself, or farther.
const (
	public int32 = iota + 1
	private
	link
	loopback
)

// shared is what providers give to their customers' hosts, of RFC 6598.
var shared = netip.MustParsePrefix("100.64.0.0/10")

func nearness(ip netip.Addr) int32 {
	switch ip = ip.Unmap(); {
	case ip.IsLoopback(), ip.IsUnspecified():
		return loopback
	case ip.IsLinkLocalUnicast(), ip.IsMulticast():
		return link
	case ip.IsPrivate(), shared.Contains(ip):
		return private
	}
	return public
}

// control is called before a connection to an address is made; to is what was asked for, host:port.
func (r *reach) control(to string) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil // of no IP network
		}
		near := nearness(at.Addr())
		if to == r.address {
			r.own.Store(near)
			return nil
		}
		if own := r.own.Load(); own != 0 && near > own {
			return ours{failure.New(errdefs.ErrPermissionDenied, "if you run both, name the registry by an address of the same network, or use a proxy (HTTPS_PROXY)",
				"registry %s sends us on to %s (%s), which it need not be able to reach itself (rule internal-address)", r.address, to, at.Addr())}
		}
		return nil
	}
}

// newReach begins with the registry at a host, with the port of the scheme if it names none.
func newReach(host, scheme string) *reach {
	if _, _, err := net.SplitHostPort(host); err != nil {
		port := "443"
		if scheme == "http" {
			port = "80"
		}
		host = net.JoinHostPort(host, port)
	}
	return &reach{address: host}
}
