package save

import (
	"context"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
)

// sender sends a snapshot while it is taken: its large blobs as soon as they are complete in the local store, the rest when it is
// whole. What goes wrong with that is said at the end and does not touch the checkpoint. The zero value sends nothing.
type sender struct {
	pusher *registry.Pusher // nil: nothing is sent
	counts registry.Counts
}

func newSender(ctx context.Context, s *store.Store, ref string, o registry.Options) (*sender, error) {
	n := &sender{}
	o.Counts, o.Patient = &n.counts, true
	var err error
	n.pusher, err = registry.NewPusher(ctx, s, ref, o)
	return n, err
}

// image has an image made of the snapshot too.
func (n *sender) image(client *containerd.Client, c image.Config, ref string, o registry.Options) {
	if n.pusher != nil {
		n.pusher.WithImage(func(ctx context.Context) (*registry.Base, error) { return daemon.BaseLayers(ctx, client, c, ref, o) })
	}
}

// allowed asks whether the registry lets us push. Nothing is sent where it does not.
func (n *sender) allowed(ctx context.Context, container string) error {
	if n.pusher == nil {
		return nil
	}
	if err := n.pusher.Allowed(ctx); err != nil {
		return &restore.JobError{Container: container, Running: true, Err: err, Advice: after(err, container+" runs on; without --push the snapshot is kept here, and cryo push sends it later")}
	}
	return nil
}

// watch returns a store that is s, of which the sender hears what is complete.
func (n *sender) watch(s image.BlobStore) image.BlobStore {
	return heardStore{s, n}
}

// complete hears of a blob.
func (n *sender) complete(d ocispec.Descriptor) {
	if n.pusher != nil && (d.MediaType == image.MediaTypeSegment || d.MediaType == image.MediaTypeRootFS) {
		n.pusher.Add(d)
	}
}

// pushWaits returns what a push waits for that does not move.
func (n *sender) pushWaits() string {
	if n.pusher.Idle() {
		return "segments"
	}
	return "the registry"
}

// finish sends what is missing and waits for all of it.
func (n *sender) finish(ctx context.Context, desc ocispec.Descriptor) (*restore.Transfer, error) {
	start := time.Now()
	if err := n.pusher.Finish(ctx, desc); err != nil {
		return nil, err
	}
	return restore.Transferred(&n.counts, start), nil
}

func (n *sender) close() {
	if n.pusher != nil {
		n.pusher.Close()
	}
}

// heardStore is a store of which a sender hears what is written.
type heardStore struct {
	image.BlobStore
	by *sender
}

// Create implements [image.BlobStore].
func (h heardStore) Create(ctx context.Context) (image.BlobWriter, error) {
	w, err := h.BlobStore.Create(ctx)
	if err != nil {
		return nil, err
	}
	return heardBlob{w, h.by}, nil
}

type heardBlob struct {
	image.BlobWriter
	by *sender
}

// Commit implements [image.BlobWriter].
func (h heardBlob) Commit(ctx context.Context, mediaType string) (ocispec.Descriptor, error) {
	d, err := h.BlobWriter.Commit(ctx, mediaType)
	if err == nil {
		h.by.complete(d)
	}
	return d, err
}
