package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/store"
)

// accept lists what we want to be told about, snapshots or not.
var accept = strings.Join([]string{
	ocispec.MediaTypeImageManifest,
	ocispec.MediaTypeImageIndex,
	"application/vnd.docker.distribution.manifest.v2+json",
	"application/vnd.docker.distribution.manifest.list.v2+json",
}, ", ")

// Resolve asks the registry what ref names.
func Resolve(ctx context.Context, ref string, o Options) (ocispec.Descriptor, error) {
	r, err := connectToRead(ctx, "resolve", ref, o)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer r.close()
	d, err := r.resolve(ctx)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("resolve %s: %w", ref, r.classify(ctx, err))
	}
	return d, nil
}

// resolve asks what the reference names.
func (r *repo) resolve(ctx context.Context) (ocispec.Descriptor, error) {
	by := &remote.Repository{Client: r.client, Reference: r.ref, PlainHTTP: r.manager.PlainHTTP, MaxMetadataBytes: store.MaxManifest}
	return by.Resolve(ctx, r.ref.Reference)
}

// Pull fetches the snapshot that ref names and tags it with ref in the local store. What is there is not fetched again, so a
// pull that was interrupted is resumed by repeating it.
func Pull(ctx context.Context, dst *store.Store, ref string, o Options) (ocispec.Descriptor, error) {
	p, err := NewPuller(ctx, dst, ref, o)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer p.Close()
	if err := p.Finish(ctx); err != nil {
		return ocispec.Descriptor{}, err
	}
	return p.Descriptor(), nil
}

// named is what a reference names in a registry.
type named struct {
	desc    ocispec.Descriptor // of the snapshot's manifest
	data    []byte
	m       ocispec.Manifest
	index   ocispec.Descriptor   // that the reference names, which has the snapshot as an entry; none: it names the snapshot
	entries []ocispec.Descriptor // of the index
}

// snapshot fetches the manifest of the snapshot that the reference names, alone or as an entry of an index. judge, unless nil, is asked as soon as its digest
// is known.
func (r *repo) snapshot(ctx context.Context, judge func(ocispec.Descriptor) error) (n named, err error) {
	if n.desc, n.data, err = r.manifest(ctx, r.ref.Reference); err != nil {
		return n, err
	}
	if store.IsIndex(n.desc.MediaType) {
		n.index = n.desc
		if n.desc, n.entries, err = store.ParseRunnable(r.name, n.index, n.data); err != nil {
			return n, err
		}
	}
	if judge != nil {
		if err := judge(n.desc); err != nil {
			return n, err
		}
	}
	if n.index.Digest != "" {
		got, data, err := r.manifest(ctx, n.desc.Digest.String())
		if answer := (*errcode.ErrorResponse)(nil); errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
			err = store.Corrupt("index of "+r.name, fmt.Errorf("the registry has no manifest %s that it lists", n.desc.Digest))
		}
		if err != nil {
			return n, err
		}
		if got.MediaType != n.desc.MediaType || got.Size != n.desc.Size {
			return n, store.Corrupt("index of "+r.name, fmt.Errorf("it lists %s as %s of %d bytes, and it is %.80s of %d", n.desc.Digest, n.desc.MediaType, n.desc.Size, got.MediaType, got.Size))
		}
		n.data = data
	}
	n.m, err = store.ParseSnapshot(r.name, n.desc, n.data)
	return n, err
}

// manifest fetches the manifest of a tag or digest, again where it was cut or damaged on the way. A mirror whose answer is of no use is left out.
func (r *repo) manifest(ctx context.Context, reference string) (ocispec.Descriptor, []byte, error) {
	for n := 0; ; n++ {
		d, data, from, err := r.manifestOnce(ctx, reference)
		if (err != nil || mislabelled(d, data)) && ctx.Err() == nil && wrong(from) {
			n--
			continue
		}
		damaged, cut := errors.Is(err, store.ErrCorrupt), errors.As(err, new(*cutError)) && temporary(err)
		if again := damaged && n+1 < damageAttempts || cut && n < r.timing.attempts; !again || ctx.Err() != nil {
			return d, data, err
		}
		if err := r.timing.pause(ctx, n); err != nil {
			return d, nil, err
		}
	}
}

// mislabelled reports whether a manifest says that it has another media type than the answer has, which no digest protects.
func mislabelled(d ocispec.Descriptor, data []byte) bool {
	var m struct {
		MediaType string `json:"mediaType"`
	}
	return !store.IsManifest(d.MediaType) || format.ManifestJSON.Unmarshal(data, &m) == nil && m.MediaType != "" && m.MediaType != d.MediaType
}

// cutError ends an answer that had begun.
type cutError struct{ error }

// Unwrap returns the error.
func (e *cutError) Unwrap() error { return e.error }

// manifestOnce asks for a manifest once. from is the body of the answer, closed; nil: none came.
func (r *repo) manifestOnce(ctx context.Context, reference string) (_ ocispec.Descriptor, _ []byte, from io.ReadCloser, _ error) {
	var none ocispec.Descriptor
	resp, err := r.do(ctx, http.MethodGet, r.url("manifests", reference), http.Header{"Accept": {accept}})
	if err != nil {
		return none, nil, nil, fmt.Errorf("fetch manifest: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return none, nil, nil, fmt.Errorf("fetch manifest: %w", answerError(resp))
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, store.MaxManifest+1))
	if err != nil {
		return none, nil, resp.Body, fmt.Errorf("fetch manifest: %w", &cutError{err})
	}
	what := "manifest of " + r.name
	if len(data) > store.MaxManifest {
		return none, nil, resp.Body, store.Corrupt(what, fmt.Errorf("larger than %d bytes", store.MaxManifest))
	}
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return none, nil, resp.Body, store.Corrupt(what, fmt.Errorf("parse Content-Type: %w", err))
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	for _, want := range []string{reference, resp.Header.Get("Docker-Content-Digest")} {
		// A tag is no digest; a digest by another algorithm cannot be compared.
		if w := digest.Digest(want); w.Validate() == nil && w.Algorithm() == digest.SHA256 && w != d.Digest {
			return none, nil, resp.Body, store.Corrupt(what, fmt.Errorf("it has digest %s, not %s", d.Digest, w))
		}
	}
	return d, data, resp.Body, nil
}
