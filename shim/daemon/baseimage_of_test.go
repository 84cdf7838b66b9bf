package daemon

import (
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestReferrer(t *testing.T) {
	tests := []struct {
		image, ref string
		want       bool
	}{
		{"registry.example.com/app:1", "registry.example.com/app:warm", true},
		{"docker.io/library/redis:alpine", "docker.io/library/redis:warm", true},
		{"redis:alpine", "docker.io/library/redis:warm", true},
		{"registry.example.com/app@sha256:0123456789012345678901234567890123456789012345678901234567890123", "registry.example.com/app:warm", true},
		{"registry.example.com/app:1", "registry.example.com/snapshots/app:warm", false},
		{"registry.example.com/app:1", "other.example.com/app:warm", false},
		{"Not A Reference", "Not A Reference", false},
		{"", "", false},
	}
	for _, test := range tests {
		if got := BaseReferrer(ocispec.Descriptor{Size: 7}, test.image, test.ref); (got != nil) != test.want {
			t.Errorf("%s in %s: got %v", test.ref, test.image, got)
		}
	}
}

// TestShifted has names that containerd's clients give to layers with other owners, the first as 2.4.2 has it.
func TestShifted(t *testing.T) {
	const parent = "sha256:0123456789012345678901234567890123456789012345678901234567890123"
	maps := func(host uint32) []specs.LinuxIDMapping {
		return []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 1000, Size: 1}, {HostID: host, Size: 1000}}
	}
	name := digest.FromString(`{"Parent":"` + parent + `","IDMap":{"UidMap":[{"containerID":0,"hostID":7,"size":1000},{"containerID":1000,"hostID":1000,"size":1}],` +
		`"GidMap":[{"containerID":0,"hostID":8,"size":1000},{"containerID":1000,"hostID":1000,"size":1}]}}`).String()
	for _, test := range []struct {
		name     string
		uid, gid uint32
		want     bool
	}{
		{name, 7, 8, true},
		{name, 7, 7, false},
		{parent + "-7-8", 7, 8, true},
		{"sha256:3210987654321098765432109876543210987654321098765432109876543210", 7, 8, false},
		{parent, 7, 8, false},
	} {
		if got := shifted(test.name, parent, maps(test.uid), maps(test.gid)); got != test.want {
			t.Errorf("%s with %d, %d: %v", test.name, test.uid, test.gid, got)
		}
	}
}
