package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/image/store"
)

// Base is the base image of a snapshot, and where its layers can be read.
type Base struct {
	*image.RunnableBase
	// Ref is a reference to the image. Where it is on the registry that is pushed to, layers are mounted from its repository.
	Ref string
	// Open reads a layer, which is verified by the registry that gets it.
	Open func(ctx context.Context, layer ocispec.Descriptor) (io.ReadCloser, error)
	// Own are the image's configuration and manifest, and the index that the snapshot knows the image by, if it is one, with what else the index lists and is here. They come beside the snapshot, so that other hosts find the
	// image there by its digest. What lists another one comes after that.
	Own []record.Blob
	// Close is called when nothing is read any more; it may be nil.
	Close func()
}

// Named is what a name stands for after a push.
type Named struct {
	// Index lists Image and the snapshot. Both are empty where the name stands for the snapshot itself.
	Index, Image digest.Digest
	// NoImage is why there is no image, although one was asked for.
	NoImage error
}

// imaging is how an image comes about beside a snapshot.
type imaging struct {
	found chan struct{} // closed when base or why is set; nil: no image is asked for
	base  *Base         // set before found is closed
	named Named         // set by finish

	mu  sync.Mutex
	why error // guarded by mu; why there will be no image
}

// fail notes why there will be no image, unless that is known.
func (i *imaging) fail(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.why == nil {
		i.why = err
	}
}

// failed is why there will be no image; nil: there may be one.
func (i *imaging) failed() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.why
}

// layers waits until the base image is found, and gives its layers; none where there is none.
func (i *imaging) layers(ctx context.Context) []ocispec.Descriptor {
	if i.found == nil {
		return nil
	}
	select {
	case <-i.found:
	case <-ctx.Done():
		return nil
	}
	if i.base == nil {
		return nil
	}
	return store.Unique(i.base.Layers())
}

// WithImage has the push make an ordinary image of the snapshot too, and the name stand for an index of both. find finds the base image, in the background; its
// layers are sent where the registry does not have them. Where it cannot be found or read, the snapshot is pushed by itself, and [Pusher.Named] says why.
// It is called once at most, before Finish.
func (p *Pusher) WithImage(find func(context.Context) (*Base, error)) {
	if _, err := p.at.Digest(); err == nil {
		return // the name is the digest of the snapshot
	}
	p.image.found = make(chan struct{})
	p.work.Go(func() error {
		base, err := find(p.ctx)
		if err != nil {
			p.image.fail(err)
		} else {
			p.image.base = base
			p.add(p.sendLayer, base.Layers())
		}
		close(p.image.found)
		return nil // the snapshot is sent all the same
	})
}

// Named returns what the name stands for, after Finish.
func (p *Pusher) Named() Named { return p.image.named }

// sendLayer sends a layer of the base image. That it cannot be read is no error of the push.
func (p *Pusher) sendLayer(ctx context.Context, d ocispec.Descriptor) error {
	if p.image.failed() != nil {
		return nil
	}
	open := func() (io.ReadCloser, error) { return p.image.base.Open(ctx, d) }
	err := p.repo.upload(ctx, source{d: d, from: p.repo.elsewhere(p.image.base.Ref), open: open}, &tracker{m: p.sum})
	if err == nil || ctx.Err() != nil {
		return err
	}
	if unread := (*sourceError)(nil); errors.As(err, &unread) {
		err = unread.error
	} else if !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	p.image.fail(fmt.Errorf("read layer %s of the base image: %w", d.Digest, err))
	return nil
}

// putImage sends the image of the snapshot desc, and the index of both, which has no name yet. It gives what is to be named; nothing: the name stands for that
// already.
func (p *Pusher) putImage(ctx context.Context, desc ocispec.Descriptor) (ocispec.Descriptor, error) {
	if p.image.found == nil {
		return desc, nil
	}
	made, err := p.makeImage(ctx, desc)
	if err != nil {
		if there := p.namedBefore(ctx, desc); there.Index != "" {
			p.image.named = there
			return ocispec.Descriptor{}, nil
		}
		p.image.named.NoImage = err
		return desc, nil
	}
	both, ctx := errgroup.WithContext(ctx) // at the same time: a registry takes some milliseconds for each blob and manifest
	both.Go(func() error {
		return p.repo.untagged().put(ctx, &meter{counts: p.o.Counts}, nil, made.Config, made.Manifest, made.Index)
	})
	both.Go(func() error { return p.putBase(ctx) })
	if err := both.Wait(); err != nil {
		return desc, err
	}
	p.image.named = Named{Index: made.Index.Descriptor.Digest, Image: made.Manifest.Descriptor.Digest}
	return made.Index.Descriptor, nil
}

// putBase sends what is there of the base image besides its layers. A registry may refuse that, as an index of images that it does not have: then the base image is where it came from.
func (p *Pusher) putBase(ctx context.Context) error {
	untagged := p.repo.untagged()
	for _, b := range p.image.base.Own {
		if err := untagged.put(ctx, &meter{}, nil, b); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// makeImage makes the image, all layers of which the registry has. An error is why there is none.
func (p *Pusher) makeImage(ctx context.Context, desc ocispec.Descriptor) (*image.Runnable, error) {
	if why := p.image.failed(); why != nil {
		return nil, why
	}
	s, err := image.Open(ctx, p.src, desc)
	if err != nil {
		return nil, err
	}
	return p.image.base.Image(s)
}

// namedBefore is what the name stands for in the registry, if that is an index with the snapshot desc: another host that had the base image has pushed it.
func (p *Pusher) namedBefore(ctx context.Context, desc ocispec.Descriptor) (n Named) {
	d, data, err := p.repo.manifest(ctx, p.repo.ref.Reference)
	if err != nil || !store.IsIndex(d.MediaType) {
		return n
	}
	snapshot, entries, err := store.ParseRunnable(p.name, d, data)
	if err != nil || snapshot.Digest != desc.Digest {
		return n
	}
	n.Index = d.Digest
	for _, e := range entries {
		if e.Digest != snapshot.Digest {
			n.Image = e.Digest
		}
	}
	return n
}
