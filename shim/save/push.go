package save

import (
	"context"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
)

// PushOptions are the choices of a push.
type PushOptions struct {
	Registry registry.Options
	// SnapshotOnly has the name stand for the snapshot itself: no image is made of it.
	SnapshotOnly bool
	// Containerd may have the base image of the snapshot. One that is not there is not an error.
	Containerd daemon.Options
	Warn       func(format string, args ...any)
}

// Pushed is a snapshot that was sent.
type Pushed struct {
	Digest            string
	*restore.Transfer // nil: into a file
	*Named            // nil: a file
}

// Named is what a name in a registry stands for after a push.
type Named struct {
	// Index lists Image and the snapshot, all digests. Both are empty if the name stands for the snapshot itself.
	Index string `json:"index,omitempty"`
	Image string `json:"image,omitempty"`
	// NoImage is why no image could be made of the snapshot.
	NoImage string `json:"noImage,omitempty"`
}

// namedBy returns what the name ref stands for after a push, and warns if it should stand for more.
func namedBy(p *registry.Pusher, ref string, warn func(format string, args ...any)) Named {
	n := p.Named()
	if n.NoImage == nil {
		return Named{Index: n.Index.String(), Image: n.Image.String()}
	}
	why := strings.ReplaceAll(n.NoImage.Error(), "\n", "; ")
	warn("%s stands for the snapshot alone, which nothing but cryo can run. No image was made: %s", ref, why)
	return Named{NoImage: why}
}

// Push sends a snapshot of the store, by its name or the beginning of its digest, to another name in a registry, or into a file ([registry.IsLocation]). What is
// there already is not sent again, so a push that was interrupted is resumed by repeating it.
func Push(ctx context.Context, s *store.Store, ref, to string, o PushOptions) (*Pushed, error) {
	op, err := s.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = op.Close() }() // a lock
	named, err := s.Expand(ctx, ref)
	if err != nil {
		return nil, err
	}
	desc, err := s.Resolve(ctx, named)
	if err != nil {
		return nil, err
	}
	if registry.IsLocation(to) {
		if err := registry.Export(ctx, s, desc, ref, to); err != nil {
			return nil, err
		}
		return &Pushed{Digest: desc.Digest.String()}, nil
	}
	return send(ctx, s, desc, to, o)
}

// send sends a snapshot to the registry of ref.
func send(ctx context.Context, s *store.Store, desc ocispec.Descriptor, ref string, o PushOptions) (*Pushed, error) {
	start := time.Now()
	var counts registry.Counts
	o.Registry.Counts = &counts
	p, err := registry.NewPusher(ctx, s, ref, o.Registry)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if !o.SnapshotOnly {
		snapshot, err := image.Open(ctx, s, desc)
		if err != nil {
			return nil, err
		}
		var client *containerd.Client
		if _, c, err := daemon.Connect(ctx, o.Containerd); err == nil {
			client = c
			defer func() { _ = c.Close() }() // nothing was written
		} else {
			log.G(ctx).WithError(err).Debug("look for the base image in its registry alone")
		}
		p.WithImage(func(ctx context.Context) (*registry.Base, error) {
			return daemon.BaseLayers(ctx, client, snapshot.Config, ref, o.Registry)
		})
	}
	if err := p.Finish(ctx, desc); err != nil {
		return nil, err
	}
	named := namedBy(p, ref, o.Warn)
	return &Pushed{desc.Digest.String(), restore.Transferred(&counts, start), &named}, nil
}
