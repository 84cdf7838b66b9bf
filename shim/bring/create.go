package bring

import (
	"context"
	"fmt"
	"os"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
)

// create makes the container, and files for it: rootfs of the base image, the snapshot's difference applied, and the specification.
func (b *bringing) create(ctx context.Context) (containerd.Container, error) {
	if b.Etc != "" {
		b.undo.add("remove "+b.Etc, func(context.Context) error { return os.RemoveAll(b.Etc) })
		if err := restore.WriteEtcFiles(b.Etc, b.Spec.Hostname); err != nil {
			return nil, restore.Full(b.root, err)
		}
	}
	sn := b.client.SnapshotService(b.o.Snapshotter)
	if _, err := sn.Stat(ctx, b.Name); err == nil {
		return nil, fmt.Errorf("make the rootfs of %s: %w", b.Name, b.taken(b.Name))
	}
	prepare := containerd.WithNewSnapshot(b.Name, b.img)
	if l := b.Spec.Linux; l != nil && len(l.UIDMappings) > 0 && len(l.GIDMappings) > 0 {
		prepare = containerd.WithUserNSRemappedSnapshot(b.Name, b.img, l.UIDMappings, l.GIDMappings)
	}
	rootFS := func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		err := prepare(ctx, client, c)
		if !errdefs.IsAlreadyExists(err) { // else it is that of another command, which restores under the same name
			b.undo.add("remove rootfs "+b.Name, func(ctx context.Context) error { return restore.IgnoreNotFound(sn.Remove(ctx, b.Name)) })
		}
		return err
	}
	// Cancelling a call to containerd does not take back what it does, so short ones are let end and are undone then.
	container, err := b.client.NewContainer(context.WithoutCancel(ctx), b.Name,
		containerd.WithSnapshotter(b.o.Snapshotter),
		rootFS,
		func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
			return b.applyRootFS(ctx, c.SnapshotKey)
		},
		containerd.WithSpec(b.Spec),
		containerd.WithRuntime(b.o.Runtime, runtimeOptions(b.Spec)),
		containerd.WithContainerLabels(containerLabels(b.was.Labels, b.namespace, b.Name, b.Ref)),
		daemon.WithDigest(daemon.RestoredExtension, b.Digest),
		containerd.WithAdditionalContainerLabels(map[string]string{daemon.WorkLabel: restore.Mark(b.work)}),
	)
	if errdefs.IsAlreadyExists(err) {
		return nil, b.taken(b.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("create the container: %w", restore.Full("containerd's root", err))
	}
	b.undo.add("remove container "+b.Name, func(ctx context.Context) error { return restore.IgnoreNotFound(container.Delete(ctx)) })
	return container, nil
}

// applyRootFS has what the snapshot's container had changed put into its new rootfs.
func (b *bringing) applyRootFS(ctx context.Context, key string) error {
	if !b.RootFS {
		return nil
	}
	mounts, err := b.client.SnapshotService(b.o.Snapshotter).Mounts(ctx, key)
	if err != nil {
		return fmt.Errorf("find the new rootfs: %w", err)
	}
	return b.process.Apply(mount.ToProto(mounts))
}

// containerLabels are those of the restored container.
func containerLabels(old map[string]string, namespace, name, ref string) map[string]string {
	labels := trust.Labels(old)
	if ref != "" {
		labels[daemon.ReferenceLabel] = ref
	}
	// nerdctl lists a container of its own by this name, and finds it by these.
	if old[daemon.NameLabel] != "" {
		labels[daemon.NameLabel] = name
		labels["nerdctl/namespace"] = namespace
		if p := old["nerdctl/platform"]; p != "" {
			labels["nerdctl/platform"] = p
		}
	}
	return labels
}
