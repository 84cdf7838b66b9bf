package save

import (
	"context"
	"errors"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
)

// Signed is a snapshot that a key has signed.
type Signed struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Key       string `json:"key"`     // fingerprint
	Where     string `json:"where"`   // store or registry
	Already   bool   `json:"already"` // the key had signed it before
}

// Sign signs the snapshot ref in the local store, or else in its registry.
func Sign(ctx context.Context, s *store.Store, ref string, key *signature.PrivateKey, o registry.Options) (Signed, error) {
	r := Signed{Reference: ref, Key: key.Public.Fingerprint(), Where: "store"}
	desc, err := s.Resolve(ctx, ref)
	switch {
	case err == nil:
		r.Already, err = s.Sign(ctx, desc, key)
	case errors.Is(err, store.ErrUnknownRef):
		r.Where = "registry"
		desc.Digest, err = registry.Sign(ctx, ref, o, func(subject ocispec.Descriptor, have []signature.Attached) ([]signature.Attached, error) {
			made, err := key.Add(subject, have)
			r.Already = err == nil && len(made) == 0
			return made, err
		})
	}
	r.Digest = desc.Digest.String()
	return r, err
}
