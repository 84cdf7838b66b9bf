package registry

import (
	"bytes"
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// PublishGroup writes the index of a group, as [image.Group.Marshal] returns it, under the name ref. The repository has the snapshots that the index lists.
func PublishGroup(ctx context.Context, ref string, index []byte, o Options) (digest.Digest, error) {
	r, err := connect(ctx, "publish group", ref, o)
	if err != nil {
		return "", err
	}
	defer r.close()
	ctx = r.scoped(ctx, auth.ActionPull, auth.ActionPush)
	d := content.NewDescriptorFromBytes(ocispec.MediaTypeImageIndex, index)
	if err := r.manager.Manifests().PushReference(ctx, d, bytes.NewReader(index), r.ref.Reference); err != nil {
		return "", fmt.Errorf("publish group %s: %w", ref, r.classify(ctx, err))
	}
	return d.Digest, nil
}

// ReadGroup fetches the index of the group ref, and returns its digest.
func ReadGroup(ctx context.Context, ref string, o Options) (image.Group, digest.Digest, error) {
	i, err := NewImage(ctx, ref, o)
	if err != nil {
		return image.Group{}, "", err
	}
	defer i.Close()
	d, err := i.Resolve(ctx)
	if err != nil {
		return image.Group{}, "", err
	}
	if d.MediaType != ocispec.MediaTypeImageIndex {
		return image.Group{}, "", fmt.Errorf("%s: %w", ref, image.ErrNoGroup)
	}
	data, err := store.ReadAll(ctx, i, d, store.MaxManifest)
	if err != nil {
		return image.Group{}, "", err
	}
	g, err := image.ParseGroup(data)
	if err != nil {
		return image.Group{}, "", fmt.Errorf("%s: %w", ref, err)
	}
	return g, d.Digest, nil
}
