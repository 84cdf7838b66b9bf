package main

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
)

// baseImageError says that the base image was nowhere to be had. Its kind is its cause's.
type baseImageError struct {
	image  string
	digest digest.Digest
	err    error
}

func (e *baseImageError) Error() string {
	return fmt.Sprintf("get the base image %s (%s): %v", e.image, e.digest, e.err)
}

func (e *baseImageError) Hint() string {
	return fmt.Sprintf("bring it to this containerd first: ctr images pull REPOSITORY@%s, or ctr images import; credentials and --plain-http of cryo apply to its registry too", e.digest)
}

func (e *baseImageError) Unwrap() error { return e.err }

// baseImage gives the image a snapshot stands on, unpacked, and fetches it if it is not here: by its digest, from the
// snapshot's own repository or from where it came. What it adds to containerd goes on undo.
func baseImage(ctx context.Context, client *containerd.Client, p *plan, o registry.Options, u *undo) (containerd.Image, error) {
	c := p.snapshot.Config.Container
	if c.ImageDigest == "" {
		return nil, fmt.Errorf("the snapshot does not say what image it stands on: %w", errdefs.ErrFailedPrecondition)
	}
	if err := c.ImageDigest.Validate(); err != nil {
		return nil, fmt.Errorf("the snapshot names its base image by a digest that is none: %w: %w", err, errdefs.ErrDataLoss)
	}
	present, err := client.ImageService().List(ctx, "target.digest=="+c.ImageDigest.String())
	if err != nil {
		return nil, fmt.Errorf("list containerd's images: %w", err)
	}
	for _, i := range preferred(present, c.Image) {
		img := containerd.NewImage(client, i)
		if err := unpacked(ctx, img, p.snapshotter); err != nil {
			log.G(ctx).WithError(err).WithField("image", i.Name).Debug("image is not complete")
			continue
		}
		return img, nil
	}
	var failed []error
	for _, from := range sources(p.ref, c) {
		if _, err := client.ImageService().Get(ctx, from.ref); errdefs.IsNotFound(err) {
			u.add("remove image "+from.ref, func(ctx context.Context) error {
				return ignoreNotFound(client.ImageService().Delete(ctx, from.ref))
			})
		}
		img, err := client.Pull(ctx, from.ref, containerd.WithResolver(resolver(ctx, o)), containerd.WithPullUnpack, containerd.WithPullSnapshotter(p.snapshotter))
		if err != nil {
			failed = append(failed, fmt.Errorf("pull %s: %w", from.ref, err))
			continue
		}
		if img.Target().Digest != c.ImageDigest {
			return nil, &baseImageError{image: c.Image, digest: c.ImageDigest, err: fmt.Errorf("%s has the digest %s: %w", from.ref, img.Target().Digest, errdefs.ErrDataLoss)}
		}
		return named(ctx, client, img, from, c.Image, u), nil
	}
	return nil, &baseImageError{image: c.Image, digest: c.ImageDigest, err: errors.Join(failed...)}
}

// preferred puts the image of a name first.
func preferred(all []images.Image, name string) []images.Image {
	for i := range all {
		if all[i].Name == name {
			all[0], all[i] = all[i], all[0]
		}
	}
	return all
}

// unpacked unpacks the image if it is not yet; it fails where content is missing.
func unpacked(ctx context.Context, img containerd.Image, snapshotter string) error {
	done, err := img.IsUnpacked(ctx, snapshotter)
	if err != nil {
		return fmt.Errorf("look at image %s: %w", img.Name(), err)
	}
	if done {
		return nil
	}
	if err := img.Unpack(ctx, snapshotter); err != nil {
		return fmt.Errorf("unpack image %s: %w", img.Name(), err)
	}
	return nil
}

// source is where a base image may be had.
type source struct {
	ref      string // with digest
	original bool   // the repository that the image's name says
}

// sources lists them: the snapshot's repository, which is near, then the image's own.
func sources(ref string, c image.Container) []source {
	var all []source
	add := func(name string, original bool) {
		n, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			return // nonsense: not a place to pull from
		}
		at, err := reference.WithDigest(reference.TrimNamed(n), c.ImageDigest)
		if err != nil {
			return
		}
		for _, s := range all {
			if s.ref == at.String() {
				return
			}
		}
		all = append(all, source{ref: at.String(), original: original})
	}
	if _, err := digest.Parse(ref); err != nil {
		add(ref, false)
	}
	add(c.Image, true)
	return all
}

// named gives an image that came from its own repository its own name, if nothing has it. One that came from elsewhere
// keeps the name with the digest: a snapshot shall not decide what a name means on this host.
func named(ctx context.Context, client *containerd.Client, img containerd.Image, from source, name string, u *undo) containerd.Image {
	if !from.original || name == "" || name == from.ref {
		return img
	}
	if n, err := reference.ParseNormalizedNamed(name); err != nil || n.String() != name {
		return img
	}
	created, err := client.ImageService().Create(ctx, images.Image{Name: name, Target: img.Target(), Labels: img.Labels()})
	if err != nil {
		return img // taken, most likely
	}
	u.add("remove image "+name, func(ctx context.Context) error { return ignoreNotFound(client.ImageService().Delete(ctx, name)) })
	if err := client.ImageService().Delete(ctx, from.ref); err != nil {
		log.G(ctx).WithError(err).WithField("image", from.ref).Debug("remove the name with the digest")
	}
	return containerd.NewImage(client, created)
}
