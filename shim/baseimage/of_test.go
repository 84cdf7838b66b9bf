package baseimage

import (
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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
		if got := Referrer(ocispec.Descriptor{Size: 7}, test.image, test.ref); (got != nil) != test.want {
			t.Errorf("%s in %s: got %v", test.ref, test.image, got)
		}
	}
}
