// Package prewarm keeps snapshots ready for fast restores: their memory decoded in a tmpfs (package image/warm), and their device memory on GPUs (package
// runtime/gpu/prewarmed).
package prewarm

import (
	"context"
	"errors"

	containerd "github.com/containerd/containerd/v2/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
	"github.com/cryo-project/cryo/shim/baseimage"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// Options are the choices of what is prewarmed.
type Options struct {
	Ref  string
	Pull string // as in [restore.Options]
	// Budget is what all prewarmed snapshots together may take.
	Budget   warm.Size
	Registry registry.Options // its Progress is for all that is done
	Judging  *restore.Judging
	// Snapshotter is containerd's for the base image; empty: as in the snapshot, if it is here.
	Snapshotter string
	// OnGPU has device memory loaded too, onto the GPUs that GPUs says. GPUBudget is for all that is kept on each, bytes; 0: what is free.
	OnGPU     bool
	GPUs      restore.GPUOptions
	GPUBudget int64
	GPU       config.GPU
	// Connect reaches containerd.
	Connect func(context.Context) (context.Context, *containerd.Client, error)
	// Warn is told what a user should know.
	Warn func(format string, args ...any)
}

// Result is a snapshot that is ready.
type Result struct {
	Listed
	Already bool     `json:"already"` // it was prewarmed before
	Image   string   `json:"image"`   // the base image, which is here too
	Removed []Listed `json:"removed"` // to make room
	Fetched bool     `json:"-"`       // something may have been fetched: see the counts of Options.Registry
}

// Prewarm fetches a snapshot where it is missing, and keeps it ready.
func Prewarm(ctx context.Context, s *store.Store, o Options) (r *Result, err error) {
	_, err = s.Resolve(ctx, o.Ref)
	known := err == nil
	ref, desc, pulling, err := restore.Locate(ctx, s, o.Ref, o.Pull, o.Registry, o.Judging)
	if err != nil {
		return nil, err
	}
	if pulling != nil {
		defer pulling.Close()
		if err := pulling.Settle(ctx); err != nil {
			return nil, err
		}
	}
	r = &Result{Removed: []Listed{}, Fetched: pulling != nil}
	err = makeReady(ctx, s, ref, desc, pulling, o, !known, r)
	for _, w := range r.Removed {
		if w.Memory > 0 { // what it had on GPUs goes with it
			err = errors.Join(err, letGo(ctx, s.Root(), w.Digest))
		}
	}
	return r, err
}

// makeReady is the part that knows the snapshot. fetched: what pulling brings was not known by this name here.
func makeReady(ctx context.Context, s *store.Store, ref string, desc ocispec.Descriptor, pulling *registry.Puller, o Options, fetched bool, r *Result) error {
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
	var disk int64
	if pulling != nil && fetched {
		disk = snapshot.Size()
	}
	d := warm.New(s.Root())
	name, err := store.Normalize(ref)
	if err != nil {
		return refuse(err)
	}
	loading, err := planPreload(ctx, s, snapshot, name, o, r)
	if err != nil {
		return refuse(err)
	}
	defer loading.close()
	if ready, err := d.Find(ctx, desc.Digest); err != nil {
		return refuse(err)
	} else if ready != nil {
		r.Already = true
		removed, err := d.Keep(ctx, ready, warm.Size{Memory: warm.Need(snapshot), Disk: disk}, o.Budget)
		_ = ready.Close()
		r.Removed = append(r.Removed, forget(ctx, s, o.Warn, removed)...)
		if err != nil {
			return refuse(err)
		}
	} else {
		// Before anything large is fetched.
		removed, err := d.Room(ctx, warm.Size{Memory: warm.Need(snapshot), Disk: disk}, o.Budget)
		r.Removed = append(r.Removed, forget(ctx, s, o.Warn, removed)...)
		if err != nil {
			return refuse(err)
		}
	}
	if r.Image, err = bringBase(ctx, snapshot, ref, o, work.Dir); err != nil {
		return refuse(err)
	}
	if pulling != nil {
		if err := pulling.Finish(ctx); err != nil {
			return err
		}
	}
	info, removed, err := d.Add(ctx, s, snapshot, warm.AddOptions{Reference: name, Disk: disk, Budget: o.Budget, Progress: o.Registry.Progress})
	r.Removed = append(r.Removed, forget(ctx, s, o.Warn, removed)...)
	r.Listed = of(info)
	if err != nil || loading == nil {
		return err
	}
	r.Already = r.Already && loading.again
	r.GPUs = gpusOf(loading.info)
	return loading.load(ctx, s, snapshot)
}

// bringBase makes sure of the base image.
func bringBase(ctx context.Context, snapshot *image.Snapshot, ref string, o Options, work string) (name string, err error) {
	ctx, client, err := o.Connect(ctx)
	if err != nil {
		return "", err
	}
	defer client.Close()
	if err := restore.RemoveAbandoned(ctx, client, work); err != nil {
		o.Warn("%v", err)
	}
	ctx, done, err := restore.Lease(ctx, client, work)
	if err != nil {
		return "", err
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	c := snapshot.Config.Container
	snapshotter, err := baseimage.Snapshotter(ctx, client, o.Snapshotter, c.Snapshotter)
	if err != nil {
		return "", err
	}
	img, _, err := baseimage.Get(ctx, client, c, ref, snapshotter, o.Registry)
	if err != nil {
		return "", err
	}
	return img.Name(), nil
}

// forget removes from the store what was fetched for snapshots that are not prewarmed any more, unless the name names another by now.
func forget(ctx context.Context, s *store.Store, warn func(format string, args ...any), removed []warm.Info) (all []Listed) {
	for _, i := range removed {
		all = append(all, of(i))
		if i.Disk == 0 {
			continue
		}
		if desc, err := s.Resolve(ctx, i.Reference); err != nil || desc.Digest != i.Digest {
			continue
		}
		if _, err := s.Remove(ctx, i.Reference); err != nil {
			warn("%v", err)
		}
	}
	return all
}
