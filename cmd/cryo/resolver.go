package main

import (
	"context"
	"errors"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/registry"
)

// resolver has containerd pull one image by package registry.
type resolver struct{ image *registry.Image }

var _ remotes.Resolver = resolver{}

// Resolve implements [remotes.Resolver].
func (r resolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	d, err := r.image.Resolve(ctx)
	return ref, d, err
}

// Fetcher implements [remotes.Resolver].
func (r resolver) Fetcher(context.Context, string) (remotes.Fetcher, error) { return r.image, nil }

// Pusher implements [remotes.Resolver].
func (r resolver) Pusher(context.Context, string) (remotes.Pusher, error) {
	return nil, errors.Join(errors.New("push by this resolver"), errdefs.ErrNotImplemented)
}
