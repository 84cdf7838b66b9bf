package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

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
	name, at, err := parse(ref, true)
	if err != nil {
		return nil, fmt.Errorf("pull image: %w", err)
	}
	r, err := open(ctx, name, at, o)
	if err != nil {
		return nil, fmt.Errorf("pull image %s: %w", ref, err)
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
	b := &blobReader{ctx: ctx, image: i, d: d}
	if err := b.open(); err != nil { // who asks hears at once that there is none
		return nil, i.failed(ctx, err)
	}
	return b, nil
}

func (i *Image) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pull image %s: %w", i.ref, i.repo.classify(ctx, err))
}

// blobReader reads a blob from its begin to its end.
type blobReader struct {
	ctx    context.Context // of Fetch
	image  *Image
	d      ocispec.Descriptor
	off    int64           // bytes that were read
	body   io.ReadCloser   // what follows; nil: it is to be asked for
	began  int64           // where body began
	stream context.Context // of body, with what has ended it as its cause
	dog    *watchdog       // of stream
	fails  int             // attempts that have brought next to nothing
}

// open asks for what follows.
func (b *blobReader) open() error {
	r := b.image.repo
	ctx, dog := watch(b.ctx, r.timing.idle)
	dog.pause() // until there is an answer the transport bounds the time
	header := http.Header{}
	if b.off > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", b.off))
	}
	resp, err := r.do(ctx, http.MethodGet, r.url("blobs", b.d.Digest.String()), header)
	if err == nil && resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		err = answerError(resp)
	}
	if err == nil && b.off > 0 && !rangeFrom(resp, b.off) {
		resp.Body.Close()
		err = serverError(r.ref.Registry, 0, errors.New("it does not serve parts of blobs"))
	}
	if err != nil {
		dog.stop()
		return err
	}
	dog.kick()
	b.body, b.stream, b.dog, b.began = &watched{ReadCloser: resp.Body, w: dog, t: &tracker{m: &meter{}}}, ctx, dog, b.off
	return nil
}

// Read implements [io.Reader].
func (b *blobReader) Read(p []byte) (int, error) {
	for b.off < b.d.Size {
		n, err := b.some(p[:min(int64(len(p)), b.d.Size-b.off)])
		if n > 0 || err == nil {
			return n, nil // an error comes again
		}
		timing := b.image.repo.timing
		if b.ctx.Err() != nil || !temporary(err) || b.fails >= timing.attempts {
			return 0, b.image.failed(b.ctx, err)
		}
		if err := timing.pause(b.ctx, b.fails, 0); err != nil {
			return 0, err
		}
		b.fails++
	}
	return 0, io.EOF
}

// some reads what comes next, after asking for it where that is necessary.
func (b *blobReader) some(p []byte) (int, error) {
	if b.body == nil {
		if err := b.open(); err != nil {
			return 0, err
		}
	}
	n, err := b.body.Read(p)
	b.off += int64(n)
	if b.off-b.began >= leastMoved {
		b.fails = 0
	}
	if n > 0 || err == nil {
		return n, nil
	}
	if cause := context.Cause(b.stream); cause != nil {
		err = cause
	} else if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	b.Close()
	return 0, err
}

// Close implements [io.Closer].
func (b *blobReader) Close() error {
	if b.body == nil {
		return nil
	}
	body := b.body
	b.body = nil
	b.dog.stop()
	return body.Close()
}
