package registry

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"testing"

	"github.com/containerd/errdefs"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// TestReach: a registry may send us to what is as near as itself, or farther.
func TestReach(t *testing.T) {
	for address, want := range map[string]int32{
		"127.0.0.1": loopback, "127.9.9.9": loopback, "::1": loopback, "::ffff:127.0.0.1": loopback, "0.0.0.0": loopback, "::": loopback,
		"169.254.169.254": link, "fe80::1": link, "224.0.0.1": link,
		"10.1.2.3": private, "172.16.0.1": private, "192.168.1.1": private, "100.64.0.1": private, "fd00:ec2::254": private, "::ffff:10.0.0.1": private,
		"1.1.1.1": public, "2606:4700::1111": public, "172.32.0.1": public,
	} {
		if got := nearness(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is %d, not %d", address, got, want)
		}
	}
	r := newReach("registry.example.com", "https")
	if err := r.control("metadata:80")("tcp", "169.254.169.254:80", nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("before the registry is known: %v", err) // by way of a proxy it never is
	}
	if err := r.control("storage:443")("tcp", "9.9.9.9:443", nil); err != nil {
		t.Errorf("before the registry is known: %v", err)
	}
	for _, test := range []struct {
		own, to string
		refused bool
	}{
		{"1.1.1.1:443", "9.9.9.9:443", false},
		{"1.1.1.1:443", "10.0.0.1:443", true},
		{"1.1.1.1:443", "[fe80::1]:443", true},
		{"10.0.0.1:443", "192.168.0.1:443", false},
		{"10.0.0.1:443", "1.1.1.1:443", false},
		{"10.0.0.1:443", "169.254.169.254:80", true},
		{"10.0.0.1:443", "127.0.0.1:5000", true},
		{"127.0.0.1:443", "127.0.0.1:5000", false},
	} {
		r = newReach("registry.example.com", "https")
		if err := r.control("Registry.Example.com:443")("tcp", test.own, nil); err != nil {
			t.Fatal(err)
		}
		err := r.control("elsewhere:443")("tcp", test.to, nil)
		if (err != nil) != test.refused || test.refused && (!errdefs.IsPermissionDenied(err) || temporary(err)) {
			t.Errorf("from %s to %s: %v", test.own, test.to, err)
		}
	}
}

// TestReachName: the registry is known by each of its names, IPv6 literals without a port too.
func TestReachName(t *testing.T) {
	for _, test := range []struct{ name, scheme, dialled, address string }{
		{"[::1]", "https", "[::1]:443", "[::1]:443"},
		{"[0:0::1]", "http", "[::1]:80", "[::1]:80"},
		{"[fd00::1]:5000", "http", "[fd00::1]:5000", "[fd00::1]:5000"},
		{"Registry.example.com:443", "https", "registry.example.com:443", "10.0.0.1:443"},
		{"registry-1.docker.io", "https", "registry-1.docker.io:443", "10.0.0.1:443"},
	} {
		r := newReach(test.name, test.scheme)
		if err := r.control(test.dialled)("tcp", test.address, nil); err != nil || r.own.Load() < private {
			t.Errorf("%s: %v, %d near", test.name, err, r.own.Load())
		}
		if err := r.control("metadata:80")("tcp", "169.254.169.254:80", nil); (err == nil) != (r.own.Load() == loopback) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	r := newReach("r.example.com", "https") // which has several addresses, some of them for this
	for _, own := range []string{"127.0.0.1:443", "1.1.1.1:443", "127.0.0.1:443"} {
		if err := r.control("r.example.com:443")("tcp", own, nil); err != nil {
			t.Error(err)
		}
	}
	if err := r.control("x:80")("tcp", "127.0.0.1:80", nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a registry with an address of this host sends us on to it: %v", err)
	}
}

// TestReachProxy: with a proxy the registry counts as public. What goes past the proxy is judged, and what it is asked for by address.
func TestReachProxy(t *testing.T) {
	by, _ := url.Parse("http://proxy.corp:3128")
	r := newReach("registry.example.com", "https")
	get := r.proxy(func(q *http.Request) (*url.URL, error) {
		if q.URL.Hostname() == "no.proxy" {
			return nil, nil
		}
		return by, nil
	})
	for to, refused := range map[string]bool{
		"https://registry.example.com/v2/": false, "https://storage.example.com/x": false, "http://no.proxy/x": false,
		"http://169.254.169.254/latest": true, "http://localhost/": true, "http://a.localhost:1/": true, "http://[::1]:5000/": true, "http://10.0.0.1/": true,
		"http://2130706433/": true, "http://127.1/": true, "http://0x7f000001/": true, "http://[::ffff:10.0.0.1]/": true, "http://1.1.1.1/": false,
	} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := get(q); (err != nil) != refused || refused && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", to, err)
		}
	}
	if err := r.control("proxy.corp:3128")("tcp", "10.0.0.9:3128", nil); err != nil {
		t.Errorf("the proxy: %v", err)
	}
	if err := r.control("no.proxy:80")("tcp", "10.0.0.8:80", nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("past the proxy: %v", err)
	}
}

// TestReachNamed: a registry that a snapshot names is no nearer than the snapshot's.
func TestReachNamed(t *testing.T) {
	for _, test := range []struct {
		snapshot, address string
		refused           bool
	}{
		{"1.1.1.1/a:1", "10.0.0.1:443", true},
		{"1.1.1.1/a:1", "127.0.0.1:443", true},
		{"1.1.1.1/a:1", "9.9.9.9:443", false},
		{"10.0.0.2/a:1", "10.0.0.1:443", false},
		{"10.0.0.2/a:1", "169.254.169.254:443", true},
		{"sha256:" + "00", "10.0.0.1:443", true},
		{"localhost:5000/a:1", "127.0.0.1:443", false},
	} {
		_, at, err := parse("base.example.com/b:1")
		if err != nil {
			t.Fatal(err)
		}
		q, err := open(t.Context(), "base.example.com/b:1", at, Options{NamedBy: test.snapshot})
		if err != nil {
			t.Fatal(err)
		}
		err = q.near.control("base.example.com:443")("tcp", test.address, nil)
		if (err != nil) != test.refused || test.refused && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s names %s: %v", test.snapshot, test.address, err)
		}
	}
	f := newFake(t)
	_, at, err := parse(f.ref("b:1"))
	if err != nil {
		t.Fatal(err)
	}
	q, err := open(t.Context(), f.ref("b:1"), at, Options{NamedBy: f.ref("a:1")})
	if err != nil || q.scheme != "https" {
		t.Errorf("it is spoken to by %s, %v", q.scheme, err)
	}
}

// TestByAnyName: the password of a registry is found by each of its names, and by no other.
func TestByAnyName(t *testing.T) {
	for noted, asked := range map[string][]string{
		"r.example.com":     {"r.example.com", "r.example.com:443", "R.example.com"},
		"r.example.com:443": {"r.example.com", "r.example.com:443", "R.example.com"},
		"docker.io":         {"registry-1.docker.io", "index.docker.io", "docker.io:443"},
		"[::1]:443":         {"[::1]", "[0::1]:443"},
	} {
		get := byAnyName(func(_ context.Context, name string) (auth.Credential, error) {
			if name == noted {
				return auth.Credential{Username: "joe"}, nil
			}
			return auth.EmptyCredential, nil
		})
		for _, name := range asked {
			if c, err := get(t.Context(), name); err != nil || c.Username != "joe" {
				t.Errorf("%s for %s: %v, %v", noted, name, c, err)
			}
		}
		for _, name := range []string{"r.example.com:5000", "example.com", "r.example.com.evil.org", "[::2]", "docker.io.evil.org"} {
			if c, err := get(t.Context(), name); err != nil || c != auth.EmptyCredential {
				t.Errorf("%s for %s: %v, %v", noted, name, c, err)
			}
		}
	}
}
