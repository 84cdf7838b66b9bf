package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
)

// Bounds of what is read of a base image that is looked for.
const (
	maxImageConfig = 8 << 20 // bytes
	maxPlatforms   = 64      // images of an index, of those for the snapshot's platform
	localTime      = 10 * time.Second
)

// BaseLayers finds the image that a snapshot stands on, and where its layers can be read: in containerd's content store, else in the image's registry, by
// digest. The snapshot's config is c. client may be nil. o is how to reach the registry of the reference ref; others are
// reached without what a user gave for that one. An error says that it is nowhere to be had, or that no image can be made of such a snapshot.
func BaseLayers(ctx context.Context, client *containerd.Client, c image.Config, ref string, o registry.Options) (*registry.Base, error) {
	if err := image.CheckRunnable(c); err != nil {
		return nil, err
	}
	f := &finder{config: c, ref: ref, options: o}
	var failed []error
	if client != nil {
		base, here, err := f.local(ctx, client)
		if err == nil {
			return f.base(base, here), nil
		}
		failed = append(failed, err)
	}
	base, err := f.remote(ctx)
	if err == nil {
		return f.base(base, nil), nil
	}
	f.close()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, missing(c.Container, errors.Join(append(failed, err)...))
}

// finder looks for the base image of a snapshot.
type finder struct {
	config  image.Config
	ref     string
	options registry.Options
	here    bool // see pulledHere; set by local

	mu  sync.Mutex
	img *registry.Image // guarded by mu; where it is found in a registry, and nil until it is asked for there
}

// found is the base image of a snapshot, and what of it is no layer: see [registry.Base.Own].
type found struct {
	base *image.RunnableBase
	own  []record.Blob
}

// local finds the image in containerd, in the namespace of ctx or that of the snapshot's container, and where its content is.
func (f *finder) local(ctx context.Context, client *containerd.Client) (*found, image.Fetcher, error) {
	ctx, cancel := context.WithTimeout(ctx, localTime)
	defer cancel()
	var spaces []string
	asked, _ := namespaces.Namespace(ctx)
	failed := []error{fmt.Errorf("containerd has no such image: %w", errdefs.ErrNotFound)}
	for _, space := range []string{asked, f.config.Container.Namespace} {
		if space == "" || slices.Contains(spaces, space) {
			continue
		}
		spaces = append(spaces, space)
		present, err := withDigest(namespaces.WithNamespace(ctx, space), client, f.config.Container.ImageDigest)
		if err != nil {
			failed = append(failed, err)
		}
		f.here = f.here || pulledHere(present, f.config.Container.Image)
		here := Content{client.ContentStore(), space}
		for _, i := range present {
			base, err := f.find(ctx, here, i.Target)
			if err == nil {
				return base, here, nil
			}
			failed = append(failed, fmt.Errorf("image %s of containerd: %w", i.Name, err))
		}
	}
	return nil, nil, errors.Join(failed...)
}

// base returns what a push wants. here is where layers may be, else they come from a registry; it may be nil.
func (f *finder) base(b *found, here image.Fetcher) *registry.Base {
	return &registry.Base{RunnableBase: b.base, Own: b.own, Ref: f.config.Container.Image, Close: f.close, Open: func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		if here != nil {
			rc, err := here.Fetch(ctx, d)
			if err == nil || !errdefs.IsNotFound(err) { // containerd may have dropped what it has unpacked
				return rc, err
			}
		}
		img, err := f.open(ctx)
		if err != nil {
			return nil, err
		}
		return img.Fetch(ctx, d)
	}}
}

func (f *finder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.img != nil {
		f.img.Close()
	}
}

// remote finds the image in a registry.
func (f *finder) remote(ctx context.Context) (*found, error) {
	img, err := f.open(ctx)
	if err != nil {
		return nil, err
	}
	d, err := img.Resolve(ctx)
	if err != nil {
		return nil, err
	}
	if d.Digest != f.config.Container.ImageDigest {
		return nil, fmt.Errorf("the registry gave it the digest %s: %w", d.Digest, errdefs.ErrDataLoss)
	}
	return f.find(ctx, img, d)
}

// open prepares to read the image from the first place that has it.
func (f *finder) open(ctx context.Context) (*registry.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.img != nil {
		return f.img, nil
	}
	all := sources(f.ref, f.config.Container)
	failed := make([]error, 0, len(all))
	for _, from := range all {
		img, err := registry.NewImage(ctx, from, optionsFor(f.options, f.ref, from, f.here))
		if err == nil {
			if _, err = img.Resolve(ctx); err == nil {
				f.img = img
				return img, nil
			}
			img.Close()
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// find returns the image for the snapshot's container out of what has its digest: an image, or an index of images for several platforms. Which of them it is the layers tell.
func (f *finder) find(ctx context.Context, from image.Fetcher, d ocispec.Descriptor) (*found, error) {
	if !store.IsIndex(d.MediaType) {
		return f.read(ctx, from, d)
	}
	data, err := store.ReadAll(ctx, from, d, store.MaxManifest)
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	if err := format.ManifestJSON.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("read index %s: %w: %w", d.Digest, err, errdefs.ErrDataLoss)
	}
	entries := slices.DeleteFunc(index.Manifests, func(e ocispec.Descriptor) bool {
		p, host := e.Platform, f.config.Host
		return !store.IsManifest(e.MediaType) || store.IsIndex(e.MediaType) || p != nil && (p.OS != host.OS || p.Architecture != host.Architecture)
	})
	failed := []error{fmt.Errorf("none of its images for %s/%s has the snapshot's layers: %w", f.config.Host.OS, f.config.Host.Architecture, errdefs.ErrNotFound)}
	for _, e := range entries[:min(len(entries), maxPlatforms)] {
		base, err := f.read(ctx, from, e)
		if err == nil {
			base.own = append(base.own, beside(ctx, from, index, e)...)
			base.own = append(base.own, record.Blob{Descriptor: d, Data: data})
			return base, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// read reads one image, which must have the layers that the snapshot stands on.
func (f *finder) read(ctx context.Context, from image.Fetcher, d ocispec.Descriptor) (*found, error) {
	manifest, err := store.ReadAll(ctx, from, d, store.MaxManifest)
	if err != nil {
		return nil, err
	}
	var m struct{ Config ocispec.Descriptor }
	if err := format.ManifestJSON.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w: %w", d.Digest, err, errdefs.ErrDataLoss)
	}
	config, err := store.ReadAll(ctx, from, m.Config, maxImageConfig)
	if err != nil {
		return nil, err
	}
	base, err := image.ParseRunnableBase(manifest, config)
	if err != nil {
		return nil, err
	}
	if got, want := base.ChainID(), f.config.Container.ChainID; got != want {
		return nil, fmt.Errorf("the layers of %s have the chain ID %s, and the snapshot stands on %s: %w", d.Digest, got, want, errdefs.ErrFailedPrecondition)
	}
	return &found{base, []record.Blob{{Descriptor: m.Config, Data: config}, {Descriptor: d, Data: manifest}}}, nil
}

// beside reads what an index lists besides the image of, if containerd has all of it and it is small: such as what a builder says of how it made the image. A registry takes no index without that.
func beside(ctx context.Context, from image.Fetcher, index ocispec.Index, of ocispec.Descriptor) (all []record.Blob) {
	const most = 4 << 20
	if _, here := from.(Content); !here {
		return nil
	}
	left := int64(most)
	for _, e := range index.Manifests {
		if e.Digest == of.Digest || !store.IsManifest(e.MediaType) || store.IsIndex(e.MediaType) {
			continue
		}
		data, err := store.ReadAll(ctx, from, e, store.MaxManifest)
		if err != nil {
			return nil
		}
		var m ocispec.Manifest
		if format.ManifestJSON.Unmarshal(data, &m) != nil {
			return nil
		}
		for _, d := range append(m.Layers, m.Config) {
			if left -= d.Size; left < 0 {
				return nil
			}
			blob, err := store.ReadAll(ctx, from, d, most)
			if err != nil {
				return nil
			}
			all = append(all, record.Blob{Descriptor: d, Data: blob})
		}
		all = append(all, record.Blob{Descriptor: e, Data: data})
	}
	return all
}

// Content reads blobs from containerd's content store.
type Content struct {
	content.Provider
	Namespace string // of containerd
}

var _ image.Fetcher = Content{}

// Fetch implements [image.Fetcher].
func (c Content) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	r, err := c.ReaderAt(namespaces.WithNamespace(ctx, c.Namespace), d)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{content.NewReader(r), r}, nil
}
