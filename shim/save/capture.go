package save

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	containerdrootfs "github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// layerWriter writes the rootfs difference as an uncompressed OCI layer.
type layerWriter func(ctx context.Context, w io.Writer) error

// changes are what a container has changed in its rootfs, in the place where containerd keeps it.
type changes struct {
	client    *containerd.Client
	container containers.Container
	snapshots snapshots.Snapshotter
	parent    string // the snapshot of the image
	upper     string // where overlayfs keeps what changed; empty if the rootfs is of another kind
}

// changesOf finds what a container changes, while it runs.
func changesOf(ctx context.Context, client *containerd.Client, info containers.Container) (changes, error) {
	c := changes{client: client, container: info, snapshots: client.SnapshotService(info.Snapshotter)}
	mounts, err := c.snapshots.Mounts(ctx, info.SnapshotKey)
	if err != nil {
		return c, fmt.Errorf("find the rootfs of %s: %w", info.ID, err)
	}
	stat, err := c.snapshots.Stat(ctx, info.SnapshotKey)
	if err != nil {
		return c, fmt.Errorf("examine the rootfs of %s: %w", info.ID, err)
	}
	c.parent, c.upper = stat.Parent, worker.UpperDir(mount.ToProto(mounts))
	return c, nil
}

// capture takes what a frozen container has changed into the directory work, and returns a function that makes a layer of
// it afterwards. It is all that happens between dump and resume, so with overlayfs it is a plain copy.
func (c changes) capture(ctx context.Context, work string) (layerWriter, error) {
	if c.upper == "" {
		return captureDiff(ctx, c.client, c.snapshots, c.container, work)
	}
	copied := filepath.Join(work, "upper")
	if err := image.CaptureRootFS(ctx, copied, c.upper); err != nil {
		return nil, err
	}
	return func(ctx context.Context, w io.Writer) error {
		return withView(ctx, c.client, c.snapshots, c.parent, work, func(lower string) error {
			return image.DiffRootFS(ctx, w, lower, copied)
		})
	}, nil
}

// withView mounts a committed snapshot, read-only, in the working directory, for as long as f runs. What a killed process leaves mounted is unmounted with that directory.
func withView(ctx context.Context, client *containerd.Client, sn snapshots.Snapshotter, parent, work string, f func(root string) error) (err error) {
	ctx, done, err := restore.Lease(ctx, client, work)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done(context.WithoutCancel(ctx))) }()
	key := "cryo-view-" + filepath.Base(work)
	mounts, err := sn.View(ctx, key, parent)
	if err != nil {
		return fmt.Errorf("view the base image: %w", err)
	}
	defer func() { err = errors.Join(err, sn.Remove(context.WithoutCancel(ctx), key)) }()
	root := filepath.Join(work, "base")
	if err := os.Mkdir(root, 0o700); err != nil {
		return fmt.Errorf("mount the base image: %w", err)
	}
	defer func() {
		if left := mount.UnmountMounts(mounts, root, 0); left != nil {
			err = errors.Join(err, fmt.Errorf("unmount the base image: %w", left))
		}
	}()
	if err := mount.All(mounts, root); err != nil { // a view's mounts are read-only
		return fmt.Errorf("mount the base image: %w", err)
	}
	return f(root)
}

// captureDiff has containerd compare the rootfs with its base, for snapshotters other than overlayfs. That takes longer
// than a copy, and the container stands still meanwhile.
func captureDiff(ctx context.Context, client *containerd.Client, sn snapshots.Snapshotter, info containers.Container, work string) (_ layerWriter, err error) {
	ctx, done, err := restore.Lease(ctx, client, work)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done(context.WithoutCancel(ctx))) }()
	desc, err := containerdrootfs.CreateDiff(ctx, info.SnapshotKey, sn, client.DiffService(), diff.WithMediaType(ocispec.MediaTypeImageLayer))
	if err != nil {
		return nil, fmt.Errorf("compare the rootfs with its image: %w", err)
	}
	r, err := client.ContentStore().ReaderAt(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("read the rootfs difference: %w", err)
	}
	defer r.Close()
	path := filepath.Join(work, "rootfs.tar")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep the rootfs difference: %w", err)
	}
	_, err = io.Copy(f, content.NewReader(r))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("keep the rootfs difference: %w", err)
	}
	if err := client.ContentStore().Delete(context.WithoutCancel(ctx), desc.Digest); err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("remove containerd's copy of the rootfs difference: %w", err)
	}
	return func(_ context.Context, w io.Writer) error {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("read the rootfs difference: %w", err)
		}
		defer f.Close()
		if _, err := io.Copy(w, f); err != nil {
			return fmt.Errorf("write the rootfs difference: %w", err)
		}
		return nil
	}, nil
}
