// Package registry sends snapshots to OCI registries and fetches them.
//
// Blobs are sent whole (POST and PUT), several at once, what the registry has already is skipped; the manifest comes after
// all blobs and the tag last. Interrupted downloads are resumed where they stopped, by this process or a later one, and every
// byte is verified before it enters the local store.
package registry

import (
	"context"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// Options say how to reach a registry. The zero value uses TLS with the system's and Docker's certificates and Docker's
// credential store; registries on loopback addresses that speak no TLS are reached over plain HTTP.
type Options struct {
	// PlainHTTP speaks HTTP without TLS.
	PlainHTTP bool
	// Insecure accepts any certificate.
	Insecure bool
	// CAFile is a PEM file of certificate authorities to trust beside those of the system and of /etc/docker/certs.d.
	CAFile string
	// Username and Password take the place of Docker's credential store.
	Username, Password string
	// Concurrency is how many blobs are under way at once; 0 is 4.
	Concurrency int
	// Progress is told "push" or "pull" and bytes, those included that were there already.
	Progress image.Progress
}

// Push sends the snapshot desc of the local store and gives it the name ref.
func Push(ctx context.Context, src *store.Store, ref string, desc ocispec.Descriptor, o Options) error {
	panic("not yet")
}

// Pull fetches the snapshot that ref names and tags it with ref in the local store.
func Pull(ctx context.Context, dst *store.Store, ref string, o Options) (ocispec.Descriptor, error) {
	panic("not yet")
}

// Resolve asks the registry what ref names.
func Resolve(ctx context.Context, ref string, o Options) (ocispec.Descriptor, error) {
	panic("not yet")
}

// PushImage sends a manifest or index, such as a base image, and what it needs to the repository of ref, with ref's tag where it
// has one. What src lacks must be in the repository already.
func PushImage(ctx context.Context, src content.ReadOnlyStorage, ref string, desc ocispec.Descriptor, o Options) error {
	panic("not yet")
}
