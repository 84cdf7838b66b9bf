package daemon

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
)

func TestSources(t *testing.T) {
	d := digest.FromString("x")
	c := image.Container{Image: "docker.io/library/redis:7", ImageDigest: d}
	for _, tc := range []struct {
		ref  string
		want []string
	}{
		{"registry.example.com/snapshots/redis:warm", []string{"registry.example.com/snapshots/redis@" + d.String(), "docker.io/library/redis@" + d.String()}},
		{"redis:warm", []string{"docker.io/library/redis@" + d.String()}},
		{"sha256:" + d.Encoded(), []string{"docker.io/library/redis@" + d.String()}},
	} {
		if got := sources(tc.ref, c); !slices.Equal(got, tc.want) {
			t.Errorf("sources(%s) = %v", tc.ref, got)
		}
	}
	if got := sources("r.example.com/a:b", image.Container{Image: "\x00", ImageDigest: d}); len(got) != 1 {
		t.Errorf("with nonsense as the image: %v", got)
	}
}

func TestPreferred(t *testing.T) {
	all := []images.Image{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	if got := preferred(all, "c"); got[0].Name != "c" || len(got) != 3 {
		t.Errorf("preferred = %v", got)
	}
	if got := preferred(nil, "c"); got != nil {
		t.Errorf("preferred = %v", got)
	}
}

// TestPulledHere: an image that containerd has by its name may be pulled again from where it came, wherever that is.
func TestPulledHere(t *testing.T) {
	present := []images.Image{{Name: "localhost:5000/a:1"}}
	given := registry.Options{Username: "joe", Password: "secret"}
	for name, want := range map[string]bool{"localhost:5000/a:1": true, "localhost:5000/b:1": false} {
		if got := optionsFor(given, "r.example.com/a:b", name, pulledHere(present, name)); (got.NamedBy == "") != want || got.Password != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestOptionsFor: what the user gives for the registry of the snapshot goes to no other.
func TestOptionsFor(t *testing.T) {
	given := registry.Options{Username: "joe", Password: "secret", PlainHTTP: true, Insecure: true}
	for other, same := range map[string]bool{
		"r.example.com/c@" + digest.FromString("x").String(): true,
		"evil.example.com/a:b":                               false,
		"r.example.com:443/c:1":                              true,
		"R.example.com/c:1":                                  true,
		"r.example.com.evil.org/a:b":                         false,
		"r.example.com:5000/a:b":                             false,
		"a:b":                                                false,
		"\x00":                                               false,
	} {
		if got := optionsFor(given, "r.example.com/a:b", other, false); (got.Username != "") != same || got.PlainHTTP != same || got.Insecure != same || (got.Password != "") != same || (got.NamedBy != "") == same {
			t.Errorf("%s gets %+v", other, got)
		}
	}
}
