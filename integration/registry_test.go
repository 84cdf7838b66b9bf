package integration

import (
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestLabRegistries proves the kinds of registries: each takes an image of who knows the password, and of nobody else.
func TestLabRegistries(t *testing.T) {
	a, _ := pair(t)
	for _, test := range []struct {
		name    string
		options lab.RegistryOptions
	}{
		{"basic", lab.RegistryOptions{Auth: lab.Basic}},
		{"tls", lab.RegistryOptions{TLS: true}},
		{"tls-basic", lab.RegistryOptions{TLS: true, Auth: lab.Basic}},
		{"tls-token", lab.RegistryOptions{TLS: true, Auth: lab.Token}},
		{"loopback", lab.RegistryOptions{Host: a}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRegistry(t, test.name, test.options)
			ref, err := a.Seed(t.Context(), r, lab.ImageName)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "delete", ref) })
			must(t, a.Ctr(t.Context(), append([]string{"images", "pull"}, append(r.CtrFlags(lab.Password), ref)...)...))
			if test.options.Auth == lab.Anonymous {
				return
			}
			if result := a.Ctr(t.Context(), append([]string{"images", "push"}, append(r.CtrFlags("wrong"), ref)...)...); result.Code == 0 {
				t.Error("the registry took a wrong password")
			}
		})
	}
}

// newRegistry is a registry of the test's own.
func newRegistry(t *testing.T, name string, o lab.RegistryOptions) *lab.Registry {
	t.Helper()
	pullBases(t)
	r, err := shared.lab.Registry(t.Context(), name, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// manifest fetches what a tag names in the shared registry; of a snapshot with an image, the snapshot.
func manifest(t *testing.T, repository, tag string) []byte {
	t.Helper()
	return manifestOf(t, shared.registry.Reference(repository+":"+tag))
}

// TestLabRegistryHolds sees the base image in the shared registry.
func TestLabRegistryHolds(t *testing.T) {
	if content := string(manifest(t, "base", "1")); !strings.Contains(content, ocispec.MediaTypeImageManifest) {
		t.Errorf("manifest is %s", content)
	}
}
