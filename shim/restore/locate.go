package restore

import (
	"context"
	"errors"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
)

// Locate finds the snapshot in the store, or fetches it: from a registry all but the segments, for which there is a puller then. The
// name is that in the store. Wherever it is, its signatures are judged before anything of it is parsed. pull is as in [Options].
func Locate(ctx context.Context, s *store.Store, ref, pull string, o registry.Options, j *Judging) (string, ocispec.Descriptor, *registry.Puller, error) {
	if pull != PullAlways && !registry.IsLocation(ref) {
		desc, err := s.Resolve(ctx, ref)
		if err == nil {
			return ref, desc, nil, j.local(ctx, s, ref, desc.Digest)
		}
		if pull == PullNever || !errors.Is(err, store.ErrUnknownRef) {
			return ref, desc, nil, err
		}
	}
	if pull == PullNever {
		return ref, ocispec.Descriptor{}, nil, Wrong("--pull never and a file as the snapshot contradict each other")
	}
	o.Judge = j.Judge
	if registry.IsLocation(ref) {
		name, desc, err := registry.Import(ctx, s, ref, o.Judge, false)
		return name, desc, nil, err
	}
	p, err := registry.NewPuller(ctx, s, ref, o)
	if err != nil {
		return ref, ocispec.Descriptor{}, nil, err
	}
	if full, err := store.Normalize(ref); err == nil && full != p.Name() {
		ref = p.Name() // it has the digest of an index
	}
	return ref, p.Descriptor(), p, nil
}
