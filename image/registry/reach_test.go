package registry

import (
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"
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
	if err := r.control("metadata:80")("tcp", "169.254.169.254:80", nil); err != nil {
		t.Errorf("before the registry is known: %v", err) // by way of a proxy it never is
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
		if err := r.control("registry.example.com:443")("tcp", test.own, nil); err != nil {
			t.Fatal(err)
		}
		err := r.control("elsewhere:443")("tcp", test.to, nil)
		if (err != nil) != test.refused || test.refused && (!errdefs.IsPermissionDenied(err) || temporary(err)) {
			t.Errorf("from %s to %s: %v", test.own, test.to, err)
		}
	}
}
