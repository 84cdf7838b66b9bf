package registry

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/image/store"
)

// listAttempts is how often we enter ourselves in a list that others overwrite.
const listAttempts = 5

// untagged is the repository without the tag that the reference has.
func (r *repo) untagged() *repo {
	u := *r
	u.ref.Reference = ""
	return &u
}

// put sends blobs and manifests in their order. subject is that of the manifests; nil: they have none.
func (r *repo) put(ctx context.Context, sum *meter, subject *ocispec.Descriptor, all ...record.Blob) error {
	for _, b := range all {
		var err error
		if store.IsManifest(b.Descriptor.MediaType) {
			err = r.putManifest(ctx, b.Descriptor, b.Data, subject)
		} else {
			open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Data)), nil }
			err = r.upload(ctx, source{d: b.Descriptor, open: open}, &tracker{m: sum})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putManifest sends the manifest by digest, has it listed as a referrer of its subject, and names it last.
func (r *repo) putManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, subject *ocispec.Descriptor) error {
	for n := 0; ; n++ {
		if err := r.manager.Push(ctx, desc, bytes.NewReader(data)); err != nil {
			return fmt.Errorf("send manifest %s: %w", desc.Digest, err)
		}
		if subject == nil || n == listAttempts {
			break
		}
		// Where the registry has no referrers API the list is a manifest that every client reads, changes and writes back;
		// nothing keeps two of them apart.
		listed, err := r.listed(ctx, desc, *subject)
		if err != nil {
			return fmt.Errorf("list referrers of %s: %w", subject.Digest, err)
		}
		if listed {
			break
		}
		if err := r.timing.pause(ctx, n); err != nil {
			return err
		}
	}
	return r.tag(ctx, desc)
}

// tag gives a manifest the tag of the reference, if it has one.
func (r *repo) tag(ctx context.Context, desc ocispec.Descriptor) error {
	if r.ref.Reference == "" || r.ref.ValidateReferenceAsDigest() == nil {
		return nil
	}
	if err := r.manager.Tag(ctx, desc, r.ref.Reference); err != nil {
		return fmt.Errorf("tag %s: %w", r.ref.Reference, err)
	}
	return nil
}

func (r *repo) listed(ctx context.Context, desc, subject ocispec.Descriptor) (found bool, err error) {
	err = r.manager.Referrers(ctx, subject, "", func(page []ocispec.Descriptor) error {
		for _, d := range page {
			found = found || d.Digest == desc.Digest
		}
		return nil
	})
	return found, err
}

func total(blobs []ocispec.Descriptor) (n int64) {
	for _, d := range blobs {
		n += d.Size
	}
	return n
}

// mountable guesses which blobs other repositories of the registry have, from the names in the local store. A wrong guess costs
// nothing: the registry then takes the blob as usual.
func mountable(ctx context.Context, src *store.Store, r *repo) map[digest.Digest]string {
	tags, err := src.Tags(ctx)
	if err != nil {
		return nil
	}
	from := make(map[digest.Digest]string)
	for _, t := range tags {
		other := r.elsewhere(t.Ref)
		if other == "" {
			continue
		}
		m, _, err := store.ReadSnapshot(ctx, src, t.Ref, t.Descriptor)
		if err != nil {
			continue
		}
		for _, d := range m.Layers {
			from[d.Digest] = other
		}
	}
	return from
}
