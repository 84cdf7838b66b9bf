package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
)

// SharedLabel marks images of containerd that are snapshots of a store, with the store's directory.
const SharedLabel = "io.cryo.store"

// gcLabel names what a blob of containerd needs. Source: docs/garbage-collection.md of containerd.
const gcLabel = "containerd.io/gc.ref.content"

// shareTime bounds how long a command waits for containerd to know what has changed.
const shareTime = time.Minute

// OpenStore opens the store of a configuration. If that names a namespace of containerd, containerd at address knows each snapshot that the store names there, as long as it does: so what serves
// containerd's content to other hosts, as Spegel does, serves snapshots too. A blob is one file, which both stores link to. What cannot be shared is only missed by others: the log has why.
func OpenStore(c config.Config, address string) (*store.Store, error) {
	s, err := store.Open(c.Root)
	if err != nil {
		return nil, err
	}
	s.KeepPartial(c.Store.PartialAge())
	if c.Store.Containerd != "" {
		s.Changed = func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shareTime)
			defer cancel()
			if err := share(ctx, s, Options{Address: address, Namespace: c.Store.Containerd}); err != nil {
				log.G(ctx).WithError(err).Warn("share snapshots with containerd")
			}
		}
	}
	return s, nil
}

// share makes containerd's images with [SharedLabel] those of the store's names.
func share(ctx context.Context, s *store.Store, o Options) error {
	ctx, client, err := Connect(ctx, o)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, done, err := client.WithLease(ctx) // until there are images, nothing else keeps the blobs
	if err != nil {
		return err
	}
	defer func() { _ = done(ctx) }() // it ends by itself in a day
	// Before the names are read: of what another process shares meanwhile, nothing is removed.
	shared, err := client.ImageService().List(ctx, fmt.Sprintf("labels.%q==%q", SharedLabel, s.Root()))
	if err != nil {
		return err
	}
	tags, err := s.Tags(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]images.Image{}
	for _, t := range tags {
		for _, i := range imagesOf(t, s.Root()) {
			wanted[i.Name] = i
		}
	}
	var failed []error
	for _, i := range shared {
		if wanted[i.Name].Target.Digest == i.Target.Digest {
			delete(wanted, i.Name)
		} else if err := client.ImageService().Delete(ctx, i.Name); err != nil && !errdefs.IsNotFound(err) {
			failed = append(failed, err)
		}
	}
	plugin, err := client.IntrospectionService().PluginInfo(ctx, string(plugins.ContentPlugin), "content", nil)
	if err != nil {
		return errors.Join(append(failed, err)...)
	}
	blobs := filepath.Join(plugin.GetPlugin().GetExports()["root"], "blobs", digest.SHA256.String())
	if len(wanted) > 0 {
		if err := os.MkdirAll(blobs, 0o755); err != nil { // containerd makes it when it has a first blob
			return errors.Join(append(failed, fmt.Errorf("share a blob: %w", err))...)
		}
	}
	for _, i := range wanted {
		if err := shareImage(ctx, client, s, i, blobs); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", i.Name, err))
		}
	}
	return errors.Join(failed...)
}

// imagesOf returns what stands for a snapshot in containerd: a name by its tag, and one by its digest, as the kubelet's images have. Names of Docker Hub are those of snapshots that were never pushed, as a rule.
func imagesOf(t store.Tagged, root string) (all []images.Image) {
	named, err := reference.ParseNormalizedNamed(t.Ref)
	if err != nil || reference.Domain(named) == "docker.io" {
		return nil
	}
	by := map[string]string{SharedLabel: root}
	byDigest, err := reference.WithDigest(reference.TrimNamed(named), t.Descriptor.Digest)
	if err == nil {
		all = append(all, images.Image{Name: byDigest.String(), Target: t.Descriptor, Labels: by})
	}
	if _, tagged := named.(reference.Tagged); tagged {
		all = append(all, images.Image{Name: t.Ref, Target: t.Descriptor, Labels: by})
	}
	return all
}

// shareImage makes an image in containerd, whose blobs are in a directory, unless containerd has one by that name, which is a user's.
func shareImage(ctx context.Context, client *containerd.Client, s *store.Store, i images.Image, blobs string) error {
	named, err := reference.ParseNormalizedNamed(i.Name)
	if err != nil {
		return err
	}
	err = s.Walk(ctx, i.Target, func(d ocispec.Descriptor, path string, needs []ocispec.Descriptor) error {
		kept := map[string]string{labels.LabelDistributionSource + "." + reference.Domain(named): reference.Path(named)}
		for n, need := range needs {
			kept[fmt.Sprintf("%s.%d", gcLabel, n)] = need.Digest.String()
		}
		return shareBlob(ctx, client.ContentStore(), d, path, filepath.Join(blobs, d.Digest.Encoded()), kept)
	})
	if err != nil {
		return err
	}
	_, err = client.ImageService().Create(ctx, i)
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// shareAttempts is how often a blob is linked: containerd's collection may remove a file that it does not know yet.
const shareAttempts = 3

// shareBlob has containerd know a file as a blob of its own. It takes what lies among its blobs as content of another namespace, and copies nothing.
func shareBlob(ctx context.Context, all content.Store, d ocispec.Descriptor, path, link string, kept map[string]string) error {
	for attempt := 1; ; attempt++ {
		err := os.Link(path, link)
		if errors.Is(err, unix.EXDEV) {
			return failure.New(errdefs.ErrFailedPrecondition, "have cryo's root and containerd's on one file system, or leave containerd under [store] out", "link %s to %s: %w", link, path, err)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("share a blob: %w", err)
		}
		w, err := all.Writer(ctx, content.WithRef("cryo-"+d.Digest.String()), content.WithDescriptor(d))
		if err == nil {
			err = errors.Join(w.Commit(ctx, d.Size, d.Digest, content.WithLabels(kept)), w.Close())
		}
		if errdefs.IsAlreadyExists(err) {
			var fields []string
			for k := range kept {
				fields = append(fields, "labels."+k)
			}
			_, err = all.Update(ctx, content.Info{Digest: d.Digest, Labels: kept}, fields...)
		}
		if err == nil || attempt == shareAttempts {
			return err
		}
	}
}
