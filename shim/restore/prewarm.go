package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
)

// PrewarmOptions are the choices of what is prewarmed.
type PrewarmOptions struct {
	Ref  string
	Pull string // as in [Options]
	// DiskBudget bounds what was fetched for all prewarmed snapshots, in bytes. 0: nothing does.
	DiskBudget int64
	Registry   registry.Options // its Progress is for all that is done, and it has Counts
	Judging    *Judging
	// Snapshotter is containerd's for the base image; empty: as in the snapshot, if it is here.
	Snapshotter string
	// OnGPU has device memory loaded too, onto the GPUs that GPUs says. GPUBudget is for all that is kept on each, bytes; 0: what is free.
	OnGPU     bool
	GPUs      GPUOptions
	GPUBudget int64
	GPU       config.GPU
	// Connect reaches containerd.
	Connect func(context.Context) (context.Context, *containerd.Client, error)
	// Warn is told what a user should know.
	Warn func(format string, args ...any)
}

// PrewarmResult is a snapshot that is ready.
type PrewarmResult struct {
	PrewarmedSnapshot
	Already bool                `json:"already"` // it was prewarmed before
	Image   string              `json:"image"`   // the base image, which is here too
	Removed []PrewarmedSnapshot `json:"removed"` // to make room
	Fetched bool                `json:"-"`       // something may have been fetched: see the counts of Options.Registry
}

// Prewarm fetches a snapshot where it is missing, and gets it ready.
func Prewarm(ctx context.Context, s *store.Store, o PrewarmOptions) (r *PrewarmResult, err error) {
	_, err = s.Resolve(ctx, o.Ref)
	known := err == nil
	ref, desc, pulling, err := Locate(ctx, s, o.Ref, o.Pull, o.Registry, o.Judging)
	if err != nil {
		return nil, err
	}
	if pulling != nil {
		defer pulling.Close()
		if err := pulling.Settle(ctx); err != nil {
			return nil, err
		}
	}
	r = &PrewarmResult{Removed: []PrewarmedSnapshot{}, Fetched: pulling != nil}
	err = makeReady(ctx, s, ref, desc, pulling, o, pulling != nil && !known, r)
	for _, w := range r.Removed {
		if w.Size > 0 { // what it had on GPUs goes with it
			err = errors.Join(err, ReleasePrewarmed(ctx, s.Root(), w.Digest))
		}
	}
	return r, err
}

// makeReady is the part that knows the snapshot. fetched: by this name it was not here before.
func makeReady(ctx context.Context, s *store.Store, ref string, desc ocispec.Descriptor, pulling *registry.Puller, o PrewarmOptions, fetched bool, r *PrewarmResult) error {
	work, err := s.Work(ctx) // and keeps the blobs
	if err != nil {
		return err
	}
	defer func() { _ = work.Close() }() // the next process does it
	refuse := func(err error) error {
		if pulling != nil {
			err = errors.Join(err, pulling.Abandon())
		}
		return err
	}
	snapshot, err := image.Open(ctx, s, desc)
	if err != nil {
		return refuse(err)
	}
	name, err := store.Normalize(ref)
	if err != nil {
		return refuse(err)
	}
	record := store.Prewarmed{Reference: name, Digest: desc.Digest, Size: snapshot.Size(), Fetched: fetched}
	if fetched && o.DiskBudget > 0 && record.Size > o.DiskBudget {
		return refuse(overBudget(record.Size, o.DiskBudget))
	}
	loading, err := planPreload(ctx, s, snapshot, name, o, r)
	if err != nil {
		return refuse(err)
	}
	defer loading.close()
	if r.Image, err = bringBase(ctx, snapshot, ref, o, work.Dir); err != nil {
		return refuse(err)
	}
	if pulling != nil {
		pulling.ThroughCache()
		if err := pulling.Finish(ctx); err != nil {
			return err
		}
	}
	if err := s.Cache(ctx, slices.Concat([]ocispec.Descriptor{snapshot.Manifest.Config}, snapshot.Manifest.Layers), o.Registry.Progress); err != nil {
		return err
	}
	if pulling == nil || o.Registry.Counts.There() > 0 { // else all of it was verified as it came
		if err := s.Damaged(ctx, desc, image.Verify(ctx, s, desc, o.Registry.Progress)); err != nil {
			return err
		}
	}
	kept, removed, err := s.KeepPrewarmed(ctx, record, o.DiskBudget)
	r.PrewarmedSnapshot, r.Already = of(kept), kept.Created.Before(kept.Used) && (loading == nil || loading.again)
	for _, p := range removed {
		r.Removed = append(r.Removed, of(p))
	}
	if err != nil || loading == nil {
		return err
	}
	r.GPUs = gpusOf(loading.info)
	return loading.load(ctx, s, snapshot)
}

// overBudget returns the error that a snapshot alone is larger than the budget of what is fetched, both in bytes.
func overBudget(need, budget int64) error {
	return failure.New(errdefs.ErrResourceExhausted, fmt.Sprintf("raise it to %d MiB at least: disk under [prewarm] in the configuration", (need+1<<20-1)>>20),
		"prewarm: the snapshot has %s, and the budget of what is fetched for prewarmed snapshots is %s", config.Size(need), config.Size(budget))
}

// bringBase makes sure of the base image.
func bringBase(ctx context.Context, snapshot *image.Snapshot, ref string, o PrewarmOptions, work string) (name string, err error) {
	ctx, client, err := o.Connect(ctx)
	if err != nil {
		return "", err
	}
	defer client.Close()
	if err := RemoveAbandoned(ctx, client, work); err != nil {
		o.Warn("%v", err)
	}
	ctx, done, err := Lease(ctx, client, work)
	if err != nil {
		return "", err
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	c := snapshot.Config.Container
	snapshotter, err := daemon.Snapshotter(ctx, client, o.Snapshotter, c.Snapshotter)
	if err != nil {
		return "", err
	}
	img, _, err := daemon.GetBase(ctx, client, c, ref, snapshotter, o.Registry)
	if err != nil {
		return "", err
	}
	return img.Name(), nil
}
