package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image/store"
)

// Image reads an image of a registry, such as a base image, by the client that snapshots come by. What the registry sends is not verified here, what a mirror sends is.
type Image struct {
	ref  string
	repo *repo
}

// NewImage prepares to read the image that ref names. The caller must call Close.
func NewImage(ctx context.Context, ref string, o Options) (*Image, error) {
	r, err := connectToRead(ctx, "pull image", ref, o)
	if err != nil {
		return nil, err
	}
	return &Image{ref: ref, repo: r}, nil
}

// Close drops connections that are not in use.
func (i *Image) Close() { i.repo.close() }

// Resolve asks what the image's reference names.
func (i *Image) Resolve(ctx context.Context) (ocispec.Descriptor, error) {
	d, err := i.repo.resolve(ctx)
	return d, i.failed(ctx, err)
}

// Fetch reads a manifest or a blob of the image's repository. A connection that is cut or stalls while a blob comes is taken up where it ended.
func (i *Image) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	ctx = i.repo.scoped(ctx, auth.ActionPull)
	if store.IsManifest(d.MediaType) {
		if len(i.repo.mirrors) > 0 {
			_, data, err := i.repo.manifest(ctx, d.Digest.String())
			return whole(data, i.failed(ctx, err))
		}
		rc, err := i.repo.manager.Manifests().Fetch(ctx, d)
		return rc, i.failed(ctx, err)
	}
	for {
		r, err := i.blob(ctx, d)
		if err != nil {
			return nil, err
		}
		if r.verifier == nil || d.Size > smallMost {
			return r, nil
		}
		data, err := io.ReadAll(r)
		r.Close()
		if !errors.As(err, new(*MirrorError)) {
			return whole(data, err)
		}
	}
}

// whole returns a reader of what was read, unless that has failed.
func whole(data []byte, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// smallMost is the size, in bytes, of blobs that are read as a whole where mirrors are asked, such as an image's config: a damaged one is fetched again.
const smallMost = 4 << 20

// blob opens a blob.
func (i *Image) blob(ctx context.Context, d ocispec.Descriptor) (*imageReader, error) {
	b := &blobReader{ctx: ctx, repo: i.repo, d: d, end: d.Size, t: &tracker{m: &meter{}}}
	if err := b.open(); err != nil { // the caller hears at once that there is none
		return nil, i.failed(ctx, err)
	}
	r := &imageReader{blobReader: b, image: i}
	if len(i.repo.mirrors) > 0 && d.Digest.Validate() == nil {
		r.verifier = d.Digest.Verifier()
	}
	return r, nil
}

// imageReader returns errors that are written for users. It returns a [MirrorError] where a mirror has sent another blob.
type imageReader struct {
	*blobReader
	image    *Image
	verifier digest.Verifier // nil: there are no mirrors
}

// Read implements [io.Reader].
func (r *imageReader) Read(p []byte) (int, error) {
	n, err := r.blobReader.Read(p)
	if r.verifier != nil {
		_, _ = r.verifier.Write(p[:n])
		if err == io.EOF && !r.verifier.Verified() && r.repo.distrust(r.d.Digest) {
			err = &MirrorError{r.d.Digest, r.d.MediaType}
		}
	}
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
