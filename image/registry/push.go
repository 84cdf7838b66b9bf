package registry

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image/store"
)

// Push sends the snapshot desc of the local store and gives it the name ref. What the registry has is not sent again, so a
// push that was interrupted is resumed by repeating it.
func Push(ctx context.Context, src *store.Store, ref string, desc ocispec.Descriptor, o Options) error {
	name, at, err := parse(ref, true)
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	r, err := open(ctx, name, at, o)
	if err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	defer r.close()
	if err := push(ctx, src, r, desc, o); err != nil {
		return fmt.Errorf("push %s: %w", ref, r.classify(ctx, err))
	}
	return nil
}

func push(ctx context.Context, src *store.Store, r *repo, desc ocispec.Descriptor, o Options) error {
	op, err := src.Begin(ctx)
	if err != nil {
		return err
	}
	defer op.Close()
	data, err := store.ReadAll(ctx, src, desc, store.MaxManifest)
	if err != nil {
		return err
	}
	m, err := store.ParseSnapshot(r.name, desc, data)
	if err != nil {
		return err
	}
	if d, err := r.ref.Digest(); err == nil && d != desc.Digest {
		return &InvalidRefError{Ref: r.name, Err: fmt.Errorf("the snapshot has digest %s", desc.Digest)}
	}
	blobs := unique(append([]ocispec.Descriptor{m.Config}, m.Layers...))
	ctx = r.scoped(ctx, auth.ActionPull, auth.ActionPush)
	from := mountable(ctx, src, r)
	sum := newMeter("push", total(blobs)+desc.Size, o.Progress)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(o.concurrency())
	for _, d := range blobs {
		group.Go(func() error {
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}
			s := source{d: d, from: from[d.Digest], open: func() (io.ReadCloser, error) { return src.Fetch(gctx, d) }}
			return r.upload(gctx, s, &tracker{m: sum})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := r.putManifest(ctx, desc, data, m.Subject); err != nil {
		return err
	}
	sum.add(desc.Size)
	return nil
}

// listAttempts is how often we enter ourselves in a list that others overwrite.
const listAttempts = 5

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
		if err := r.timing.pause(ctx, n, 0); err != nil {
			return err
		}
	}
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

// unique drops repetitions: equal segments are one blob.
func unique(all []ocispec.Descriptor) []ocispec.Descriptor {
	seen := make(map[digest.Digest]bool, len(all))
	var out []ocispec.Descriptor
	for _, d := range all {
		if !seen[d.Digest] {
			seen[d.Digest] = true
			out = append(out, d)
		}
	}
	return out
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
		named, err := reference.ParseNormalizedNamed(t.Ref)
		if err != nil || reference.Domain(named) != r.ref.Registry || reference.Path(named) == r.ref.Repository {
			continue
		}
		data, err := store.ReadAll(ctx, src, t.Descriptor, store.MaxManifest)
		if err != nil {
			continue
		}
		m, err := store.ParseSnapshot(t.Ref, t.Descriptor, data)
		if err != nil {
			continue
		}
		for _, d := range m.Layers {
			from[d.Digest] = reference.Path(named)
		}
	}
	return from
}
