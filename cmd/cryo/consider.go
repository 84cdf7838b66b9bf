package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	containerd "github.com/containerd/containerd/v2/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// consider plans a restore. Of a snapshot that is being pulled, all is compared that can be compared without its segments, which are
// not here yet. pulling is nil for a snapshot that is here; from has its blobs then, or all but the segments.
func (a *app) consider(ctx context.Context, client *containerd.Client, s *store.Store, desc ocispec.Descriptor, from image.Fetcher, ref string, f restoreFlags, pulling *registry.Puller, work string) (p *plan, err error) {
	// What was fetched of a snapshot that is refused goes again.
	refuse := func(err error) (*plan, error) {
		if pulling != nil {
			err = errors.Join(err, pulling.Abandon())
		}
		return nil, err
	}
	snapshot, err := image.Open(ctx, from, desc)
	if err != nil {
		return refuse(err)
	}
	if p, err = a.plan(ctx, client, snapshot, ref, f); err != nil {
		return refuse(err)
	}
	p.from = from
	if pulling == nil {
		return p, nil
	}
	if err := p.tryImages(ctx, s, filepath.Join(work, "tried")); err != nil {
		return refuse(&failedError{op: "restore", name: p.name, err: err})
	}
	return p, nil
}

// tryImages checks CRIU's images in a directory that is gone afterwards.
func (p *plan) tryImages(ctx context.Context, s *store.Store, dir string) (err error) {
	defer func() {
		if rerr := os.RemoveAll(dir); err == nil && rerr != nil {
			err = fmt.Errorf("clear a working directory: %w", rerr)
		}
	}()
	if err := p.snapshot.UnpackImages(ctx, s, dir); err != nil {
		return full(s.Root(), err)
	}
	return p.checkImages(dir)
}

// checkImages compares CRIU's images with what the snapshot says of itself, and with what it was granted.
func (p *plan) checkImages(dir string) error {
	if err := checkRecord(p.snapshot.Config, dir); err != nil {
		return err
	}
	spec := *p.spec
	if g := p.snapshot.Config.GPU; g != nil && g.Library != nil {
		// The shim mounts this host's, which has to be the same.
		spec.Mounts = append(slices.Clone(spec.Mounts), specs.Mount{Destination: library.Inner, Type: "bind"})
	}
	return trust.Images(dir, &spec, p.policy, exists)
}
