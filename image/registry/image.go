package registry

import (
	"context"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image/store"
)

// Image reads an image of a registry, such as a base image, by the client that snapshots come by. Nothing of it is verified here.
type Image struct {
	ref  string
	repo *repo
}

// NewImage prepares to read the image that ref names. The caller must call Close.
func NewImage(ctx context.Context, ref string, o Options) (*Image, error) {
	r, err := connect(ctx, "pull image", ref, o)
	if err != nil {
		return nil, err
	}
	return &Image{ref: ref, repo: r}, nil
}

// Close drops connections that are not in use.
func (i *Image) Close() { i.repo.close() }

// Resolve asks what the image's reference names.
func (i *Image) Resolve(ctx context.Context) (ocispec.Descriptor, error) {
	d, err := i.repo.manager.Resolve(ctx, i.repo.ref.Reference)
	return d, i.failed(ctx, err)
}

// Fetch reads a manifest or a blob of the image's repository. A connection that is cut or stalls while a blob comes is taken up where it ended.
func (i *Image) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	ctx = i.repo.scoped(ctx, auth.ActionPull)
	if store.IsManifest(d.MediaType) {
		rc, err := i.repo.manager.Manifests().Fetch(ctx, d)
		return rc, i.failed(ctx, err)
	}
	b := &blobReader{ctx: ctx, repo: i.repo, d: d, end: d.Size, t: &tracker{m: &meter{}}}
	if err := b.open(); err != nil { // the caller hears at once that there is none
		return nil, i.failed(ctx, err)
	}
	return &imageReader{b, i}, nil
}

// imageReader gives errors for users.
type imageReader struct {
	*blobReader
	image *Image
}

// Read implements [io.Reader].
func (r *imageReader) Read(p []byte) (int, error) {
	n, err := r.blobReader.Read(p)
	if err == nil || err == io.EOF {
		return n, err
	}
	return n, r.image.failed(r.ctx, err)
}

func (i *Image) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pull image %s: %w", i.ref, i.repo.classify(ctx, err))
}
