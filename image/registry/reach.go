package registry

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/signature"
)

// reach refuses connections to which a registry sends us, by a redirect or by naming a token service, where the address is nearer to this host than the
// registry: on this host, on its link (where clouds have their metadata), or in its private network. A registry that a snapshot names is refused if it is nearer than the
// snapshot's own.
//
// Where a proxy is used it resolves names, and decides where they lead. Addresses are judged here all the same, as are all connections that go past the proxy: the
// registry counts as public then.
type reach struct {
	address string // of the registry, in its canonical form
	limit   int32  // how near it may be; 0: at will
	namedBy string // which snapshot names it, where there is a limit

	own     atomic.Int32 // how near the registry is, where it has several addresses the farthest; 0: not known
	proxies sync.Map     // their addresses in the canonical form
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

// literal returns how near a host is if that can be read from its name.
func literal(host string) (near int32, is bool) {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return loopback, true
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return nearness(ip), true
	}
	// 127.1, 0x7f000001 and the like are addresses to many programs. No top-level domain begins with a digit.
	last := host[strings.LastIndexByte(host, '.')+1:]
	return loopback, last != "" && last[0] >= '0' && last[0] <= '9'
}

// lookupTime bounds how long the addresses of a registry are looked up.
const lookupTime = 5 * time.Second

// farthest returns how near a registry is: the farthest of its addresses counts, and as long as it has none it is public.
func farthest(ctx context.Context, registry string) int32 {
	host, _ := signature.SplitDomain(registry)
	if near, is := literal(host); is {
		return near
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(addresses) == 0 {
		return public
	}
	near := loopback
	for _, ip := range addresses {
		near = min(near, nearness(ip))
	}
	return near
}

// control is called before a connection to an address is made; to is what was asked for, host:port.
func (r *reach) control(to string) func(network, address string, _ syscall.RawConn) error {
	to = signature.CanonicalDomain(to)
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil // of no IP network
		}
		if _, is := r.proxies.Load(to); is {
			return nil
		}
		return r.judge(to, nearness(at.Addr()), at.Addr().String())
	}
}

// proxy is get for a transport. What goes by a proxy is judged if it is sent to an address: names are for the proxy to resolve.
func (r *reach) proxy(get func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	return func(req *http.Request) (*url.URL, error) {
		by, err := get(req)
		if by == nil || err != nil {
			return by, err
		}
		r.proxies.Store(signature.CanonicalDomain(withPort(by)), true)
		to := withPort(req.URL)
		if host, _ := signature.SplitDomain(signature.CanonicalDomain(to)); host != "" {
			if near, is := literal(host); is {
				return by, r.judge(signature.CanonicalDomain(to), near, host)
			}
		}
		return by, nil
	}
}

// withPort returns host and port of a URL.
func withPort(u *url.URL) string {
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), ports[u.Scheme]))
}

// judge decides about a connection to a host, in its canonical form, which is so near.
func (r *reach) judge(to string, near int32, address string) error {
	if to != r.address {
		if near > max(r.own.Load(), public) {
			return ours{failure.New(errdefs.ErrPermissionDenied, "if you run both, name the registry by an address of the same network, or use a proxy (HTTPS_PROXY)",
				"registry %s sends us on to %s (%s), which it need not be able to reach itself (rule internal-address)", r.address, to, address)}
		}
		return nil
	}
	if r.limit != 0 && near > r.limit {
		return ours{failure.New(errdefs.ErrPermissionDenied, "fetch what is needed from there by other means first, such as ctr images pull",
			"snapshot %s sends us to registry %s (%s), which is nearer to this host than the snapshot's own (rule internal-address)", r.namedBy, to, address)}
	}
	for {
		own := r.own.Load()
		if own != 0 && own <= near || r.own.CompareAndSwap(own, near) {
			return nil
		}
	}
}

// newReach begins with the registry at a host, with the port of the scheme if it names none.
func newReach(name, scheme string) *reach {
	host, port := signature.SplitDomain(name)
	if port == "" && scheme == "http" {
		port = "80"
	}
	return &reach{address: signature.CanonicalDomain(signature.JoinDomain(host, port))}
}
