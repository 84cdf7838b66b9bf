package restore

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu/library"
	"github.com/cryo-project/cryo/shim/worker"
)

// consider plans a restore, and unpacks CRIU's images meanwhile, to compare them with the plan. Of a snapshot that is being pulled, all is
// compared that can be compared without its segments, which are not here yet: from has all else.
func consider(ctx context.Context, s *store.Store, desc ocispec.Descriptor, from image.Fetcher, ref, work string, here *Looking, o Options) (p *Plan, err error) {
	snapshot, err := image.Open(ctx, from, desc)
	if err != nil {
		return nil, err
	}
	images := filepath.Join(work, "images")
	box, err := openSandbox(ctx, "", images) // it takes some milliseconds to be ready
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = box.Close()
		}
	}()
	unpacking, cancel := context.WithCancel(ctx)
	defer cancel()
	var unpacked *image.Unpacked
	failed := make(chan error, 1)
	go func() {
		var err error
		unpacked, err = snapshot.UnpackImages(unpacking, from, images)
		failed <- err
	}()
	p, planErr := newPlan(ctx, snapshot, ref, here, o)
	if planErr != nil {
		cancel()
	}
	err = <-failed
	if planErr != nil {
		return nil, planErr // it says more
	}
	p.From, p.Images, p.Unpacked, p.box = from, images, unpacked, box
	if err == nil {
		err = Unawaited(ctx, func() error { return p.checkImages(ctx, images) })
	}
	if err != nil {
		return nil, Full(s.Root(), err)
	}
	return p, nil
}

// checkImages compares CRIU's images with what the snapshot says of itself, and with what it was granted.
func (p *Plan) checkImages(ctx context.Context, dir string) error {
	if err := checkRecord(p.Snapshot.Config, dir); err != nil {
		return err
	}
	spec := *p.Spec
	if p.placed != nil {
		spec.Mounts = p.placed
	}
	if g := p.Snapshot.Config.GPU; g != nil && g.Library != nil {
		// The shim mounts this host's, which has to be the same.
		spec.Mounts = append(slices.Clone(spec.Mounts), specs.Mount{Destination: library.Inner, Type: "bind"})
	}
	return p.box.Images(ctx, &spec, p.Policy)
}

// checkFiles compares CRIU's images with the container's root file system, which is mounted now.
func (p *Plan) checkFiles(ctx context.Context, f worker.Files) error {
	if p.box == nil {
		return fmt.Errorf("review the files of %s a second time: %w", p.Name, errdefs.ErrInternal)
	}
	defer p.closeBox()
	return p.box.Files(ctx, f.Rootfs, f.Spec)
}

// closeBox ends the process that reviews.
func (p *Plan) closeBox() {
	_ = p.box.Close() // a review that mattered has said what went wrong
	p.box = nil
}
