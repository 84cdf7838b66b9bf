package registry

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image/store"
)

// PushImage sends a manifest or index, such as a base image, and what it needs to the repository of ref, with ref's tag where it
// has one. What src lacks must be in the repository already.
func PushImage(ctx context.Context, src content.ReadOnlyStorage, ref string, desc ocispec.Descriptor, o Options) error {
	name, at, err := parse(ref, false)
	if err != nil {
		return fmt.Errorf("push image: %w", err)
	}
	r, err := open(ctx, name, at, o)
	if err != nil {
		return fmt.Errorf("push image %s: %w", ref, err)
	}
	defer r.close()
	p := &imagePusher{r: r, src: src, o: o}
	if err := p.push(r.scoped(ctx, auth.ActionPull, auth.ActionPush), desc); err != nil {
		return fmt.Errorf("push image %s: %w", ref, r.classify(ctx, err))
	}
	return nil
}

type imagePusher struct {
	r   *repo
	src content.ReadOnlyStorage
	o   Options
}

// manifest is something to send after all that it needs.
type manifest struct {
	d    ocispec.Descriptor
	data []byte
}

func (p *imagePusher) push(ctx context.Context, desc ocispec.Descriptor) error {
	var (
		manifests []manifest
		blobs     []ocispec.Descriptor
	)
	if err := p.walk(ctx, desc, make(map[digest.Digest]bool), &manifests, &blobs); err != nil {
		return err
	}
	sum := newMeter("push", total(blobs), p.o)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(p.o.concurrency())
	for _, d := range blobs {
		group.Go(func() error {
			s := source{d: d, open: func() (io.ReadCloser, error) { return p.src.Fetch(gctx, d) }}
			ok, err := p.src.Exists(gctx, d)
			if err != nil {
				return err
			}
			if !ok {
				ok, err = p.r.hasBlob(gctx, d)
				if err == nil && !ok {
					err = &UnsendableError{Ref: p.r.name, Digest: d.Digest}
				}
				return err
			}
			return p.r.upload(gctx, s, &tracker{m: sum})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, m := range manifests {
		r := p.r
		if i < len(manifests)-1 {
			r = r.untagged() // only the outermost gets the name
		}
		if err := r.putManifest(ctx, m.d, m.data, nil); err != nil {
			return err
		}
	}
	return nil
}

// walk lists what desc needs, inner manifests first.
func (p *imagePusher) walk(ctx context.Context, d ocispec.Descriptor, seen map[digest.Digest]bool, manifests *[]manifest, blobs *[]ocispec.Descriptor) error {
	if seen[d.Digest] {
		return nil
	}
	seen[d.Digest] = true
	if !store.IsManifest(d.MediaType) {
		if len(d.URLs) == 0 || !strings.Contains(d.MediaType, "foreign") && !strings.Contains(d.MediaType, "nondistributable") {
			*blobs = append(*blobs, d)
		}
		return nil
	}
	ok, err := p.src.Exists(ctx, d)
	if err != nil {
		return err
	}
	if !ok {
		return p.checkManifest(ctx, d)
	}
	data, err := store.ReadAll(ctx, p.src, d, store.MaxManifest)
	if err != nil {
		return err
	}
	needed, err := store.Successors(d, data)
	if err != nil {
		return err
	}
	for _, n := range needed {
		if err := p.walk(ctx, n, seen, manifests, blobs); err != nil {
			return err
		}
	}
	*manifests = append(*manifests, manifest{d, data})
	return nil
}

// checkManifest accepts a manifest that src lacks where the registry has it.
func (p *imagePusher) checkManifest(ctx context.Context, d ocispec.Descriptor) error {
	ok, err := p.r.manager.Manifests().Exists(ctx, d)
	if err != nil {
		return err
	}
	if !ok {
		return &UnsendableError{Ref: p.r.name, Digest: d.Digest}
	}
	return nil
}
