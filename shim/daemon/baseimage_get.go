package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/signature"
)

// missing returns the error that the base image of a container was nowhere to be had. Its kind is its cause's.
func missing(c image.Container, err error) error {
	return failure.New(errdefs.Resolve(err),
		fmt.Sprintf("bring it to this containerd first: ctr images pull REPOSITORY@%s, or ctr images import; --user, --plain-http and --skip-verify of cryo are for the snapshot's own registry alone", c.ImageDigest),
		"get the base image %s (%s): %w", c.Image, c.ImageDigest, err)
}

// undoTime bounds the undoing of what was added to containerd.
const undoTime = 60 * time.Second

// GetBase returns the image that the snapshot ref of the container c stands on, unpacked, and fetches it if it is not here: by its digest, from the
// snapshot's own repository or from where it came. undo removes again what it has added to containerd; after an error that is done.
func GetBase(ctx context.Context, client *containerd.Client, c image.Container, ref, snapshotter string, o registry.Options) (_ containerd.Image, undo func(context.Context) error, err error) {
	var added []string
	remove := func(ctx context.Context) (err error) {
		for _, name := range added {
			if gone := client.ImageService().Delete(ctx, name); gone != nil && !errdefs.IsNotFound(gone) {
				err = errors.Join(err, fmt.Errorf("remove image %s: %w", name, gone))
			}
		}
		return err
	}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			err = errors.Join(err, remove(ctx))
		}
	}()
	if c.ImageDigest == "" {
		return nil, nil, fmt.Errorf("the snapshot does not say what image it stands on: %w", errdefs.ErrFailedPrecondition)
	}
	present, err := withDigest(ctx, client, c.ImageDigest)
	if err != nil {
		return nil, nil, err
	}
	for _, i := range preferred(present, c.Image) {
		img := containerd.NewImage(client, i)
		if err := unpacked(ctx, img, snapshotter); Gone(err) { // which says nothing of the image
			return nil, nil, err
		} else if err != nil {
			log.G(ctx).WithError(err).WithField("image", i.Name).Debug("image is not complete")
			continue
		}
		return img, remove, nil
	}
	var failed []error
	for _, from := range sources(ref, c) {
		if _, err := client.ImageService().Get(ctx, from); errdefs.IsNotFound(err) {
			added = append(added, from)
		}
		img, err := pullImage(ctx, client, from, snapshotter, optionsFor(o, ref, from, pulledHere(present, c.Image)))
		if err != nil {
			failed = append(failed, fmt.Errorf("pull %s: %w", from, err))
			continue
		}
		if img.Target().Digest != c.ImageDigest {
			return nil, nil, missing(c, fmt.Errorf("%s has the digest %s: %w", from, img.Target().Digest, errdefs.ErrDataLoss))
		}
		return img, remove, nil
	}
	return nil, nil, missing(c, errors.Join(failed...))
}

// FindBase looks for the image that a snapshot stands on, where [GetBase] does, and fetches nothing. client may be nil; without o, registries are not asked. An error says that it is nowhere to be had.
func FindBase(ctx context.Context, client *containerd.Client, c image.Container, ref string, o *registry.Options) error {
	var present []images.Image
	var err error
	if client != nil {
		if present, err = withDigest(ctx, client, c.ImageDigest); err != nil {
			return err
		}
	}
	for _, i := range present {
		img := containerd.NewImage(client, i)
		if done, err := img.IsUnpacked(ctx, cmp.Or(c.Snapshotter, defaults.DefaultSnapshotter)); err == nil && done {
			return nil
		}
		if available, _, _, _, err := images.Check(ctx, img.ContentStore(), i.Target, img.Platform()); err == nil && available {
			return nil
		}
	}
	failed := []error{fmt.Errorf("containerd has no such image: %w", errdefs.ErrNotFound)}
	if o == nil {
		return missing(c, errors.Join(failed...))
	}
	for _, from := range sources(ref, c) {
		i, err := registry.NewImage(ctx, from, optionsFor(*o, ref, from, pulledHere(present, c.Image)))
		if err == nil {
			_, err = i.Resolve(ctx)
			i.Close()
		}
		if err == nil {
			return nil
		}
		failed = append(failed, fmt.Errorf("look for %s: %w", from, err))
	}
	return missing(c, errors.Join(failed...))
}

// withDigest lists containerd's images with a digest that a snapshot names.
func withDigest(ctx context.Context, client *containerd.Client, d digest.Digest) ([]images.Image, error) {
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("the snapshot names its base image by a digest that is none: %w: %w", err, errdefs.ErrDataLoss)
	}
	present, err := client.ImageService().List(ctx, "target.digest=="+d.String())
	if err != nil {
		return nil, fmt.Errorf("list containerd's images: %w", err)
	}
	return present, nil
}

// pullImage has containerd fetch and unpack an image. A blob that a mirror has sent damaged is fetched from another host.
func pullImage(ctx context.Context, client *containerd.Client, from, snapshotter string, o registry.Options) (containerd.Image, error) {
	i, err := registry.NewImage(ctx, from, o)
	if err != nil {
		return nil, err
	}
	defer i.Close()
	for {
		img, err := client.Pull(ctx, from, containerd.WithResolver(resolver{i}), containerd.WithPullUnpack, containerd.WithPullSnapshotter(snapshotter))
		var wrong *registry.MirrorError
		if !errors.As(err, &wrong) || ctx.Err() != nil {
			return img, err
		}
		log.G(ctx).WithError(err).Info("pull again by another host")
		part := remotes.MakeRefKey(ctx, ocispec.Descriptor{MediaType: wrong.MediaType, Digest: wrong.Digest})
		if err := client.ContentStore().Abort(ctx, part); err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("drop what a mirror has sent of %s: %w", wrong.Digest, err)
		}
	}
}

// optionsFor are those for the registry of another reference: what the user gives by flags, a password above all, is for the registry of ref, and a snapshot
// may name any host. Others have what /etc/docker/certs.d, hosts.toml and the credential store say, and are spoken to as [registry.Options].NamedBy says; but if here
// says that the manager of this host has the image from there, they are taken as any that a user names.
func optionsFor(o registry.Options, ref, other string, here bool) registry.Options {
	if sameRegistry(ref, other) {
		return o
	}
	others := registry.Options{DockerConfig: o.DockerConfig, Hosts: o.Hosts, Trace: o.Trace}
	if !here {
		others.NamedBy = ref
	}
	return others
}

// pulledHere reports whether containerd has an image by this name, some of whose content may be gone.
func pulledHere(present []images.Image, name string) bool {
	return slices.ContainsFunc(present, func(i images.Image) bool { return i.Name == name })
}

// sameRegistry reports whether two references are to one registry.
func sameRegistry(a, b string) bool {
	x, err := reference.ParseNormalizedNamed(a)
	if err != nil {
		return false
	}
	y, err := reference.ParseNormalizedNamed(b)
	return err == nil && signature.CanonicalDomain(reference.Domain(x)) == signature.CanonicalDomain(reference.Domain(y))
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

// sources lists where a base image may be had, with its digest: the snapshot's repository, which is near, then the image's own. In containerd
// the image is called by this name: a tag that the snapshot names could stand for another image on this host.
func sources(ref string, c image.Container) (all []string) {
	add := func(name string) {
		n, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			return // nonsense: not a place to pull from
		}
		at, err := reference.WithDigest(reference.TrimNamed(n), c.ImageDigest)
		if err != nil {
			return
		}
		if !slices.Contains(all, at.String()) {
			all = append(all, at.String())
		}
	}
	if _, err := digest.Parse(ref); err != nil {
		add(ref)
	}
	add(c.Image)
	return all
}

// resolver has containerd pull one image by package registry.
type resolver struct{ image *registry.Image }

var _ remotes.Resolver = resolver{}

// Resolve implements [remotes.Resolver].
func (r resolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	d, err := r.image.Resolve(ctx)
	return ref, d, err
}

// Fetcher implements [remotes.Resolver].
func (r resolver) Fetcher(context.Context, string) (remotes.Fetcher, error) { return r.image, nil }

// Pusher implements [remotes.Resolver].
func (r resolver) Pusher(context.Context, string) (remotes.Pusher, error) {
	return nil, errors.Join(errors.New("push by this resolver"), errdefs.ErrNotImplemented)
}

// Snapshotter is the one of containerd's that is asked for, else the one that the snapshot's container had if it is here, else containerd's default.
func Snapshotter(ctx context.Context, client *containerd.Client, asked, had string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	if had != "" {
		plugins, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
		if err != nil {
			return "", fmt.Errorf("list containerd's snapshotters: %w", err)
		}
		for _, p := range plugins.Plugins {
			if p.ID == had && p.InitErr == nil {
				return had, nil
			}
		}
	}
	name, err := client.GetLabel(ctx, "containerd.io/defaults/snapshotter")
	if err != nil {
		return "", fmt.Errorf("find containerd's default snapshotter: %w", err)
	}
	return cmp.Or(name, defaults.DefaultSnapshotter), nil
}
