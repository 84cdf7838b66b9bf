package restore

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/baseimage"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/job"
	"github.com/cryo-project/cryo/shim/restorer"
)

// making is a restore for a command: the process makes the container in containerd. Whatever it makes there is marked with its working directory.
type making struct {
	*serving
	asked   *restorer.Conversation
	client  *containerd.Client
	etc     string // directory of files for /etc that were made; empty: none
	planned bool   // something of the container may have been made

	runtime, snapshotter string   // containerd's names
	log                  *url.URL // where output goes; nil: the shim keeps some of it
	img                  containerd.Image
	unget                func(context.Context) error // removes what img has brought to containerd; nil: nothing
	task                 containerd.Task
}

// admit refuses what containerd cannot have, and decides by which runtime and snapshotter it has the rest.
func (m *making) admit(c image.Config, name string, spec *specs.Spec) (err error) {
	choices := m.request.Choices
	if err := m.checkName(name); err != nil {
		return err
	}
	if choices.Log != "" {
		if m.log, err = url.Parse(choices.Log); err != nil {
			return Wrong("--log-uri %s: %v", choices.Log, err)
		}
		if m.log.Scheme == "file" && spec.Process != nil && spec.Process.Terminal {
			return Wrong("--log-uri file:// does not work for a container with a terminal: use binary://, or leave it out and attach")
		}
	}
	if m.runtime = choices.Runtime; m.runtime == "" {
		m.runtime = c.Container.Runtime
		if !slices.Contains(daemon.RuntimeNames, m.runtime) {
			m.runtime = daemon.RuntimeNames[0]
		}
	}
	m.snapshotter, err = baseimage.Snapshotter(m.ctx, m.client, choices.Snapshotter, c.Container.Snapshotter)
	return err
}

// checkName refuses a name that containerd does not take, or that is taken.
func (m *making) checkName(name string) error {
	if err := identifiers.Validate(name); err != nil {
		return Wrong("restore as %s: %v", name, err)
	}
	switch _, err := m.client.ContainerService().Get(m.ctx, name); {
	case err == nil:
		return m.taken(name)
	case errdefs.IsNotFound(err):
		return nil
	default:
		return fmt.Errorf("restore as %s: %w", name, err)
	}
}

// taken says that a container of this name exists.
func (m *making) taken(name string) error {
	return failure.New(errdefs.ErrAlreadyExists, "choose another with --name, or remove that one first",
		"restore as %s: containerd's namespace %s has a container of this name", name, m.request.Namespace)
}

// make makes the container and its task, waits until it runs, and tells the command.
func (m *making) make(ctx context.Context, o registry.Options) error {
	p := m.prepared
	leased, _, err := Lease(ctx, m.client, m.work.Dir) // with the mark, the lease goes
	if err != nil {
		return err
	}
	if m.img, m.unget, err = baseimage.Get(leased, m.client, p.Snapshot.Config.Container, p.Ref, m.snapshotter, o); err != nil {
		return err
	}
	container, err := m.create(leased)
	if err != nil {
		return err
	}
	log.G(ctx).Debug("the container is created")
	if err := m.start(leased, container); err != nil {
		if daemon.Gone(err) && m.runsSoon() {
			lost := fmt.Errorf("%s runs, and containerd cannot be reached: %w", p.Name, err)
			m.asked.Tell(restorer.Message{Failed: failure.New(errdefs.ErrUnavailable, "see that containerd runs; it finds the container then", "%w", lost), Container: p.Name, RunsOn: true})
			return nil
		}
		return err
	}
	select {
	case <-m.running:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	log.G(ctx).Debug("the container runs")
	return m.report(ctx)
}

// runsSoon tells whether the container runs, where containerd cannot be asked. The shim tells this process.
func (m *making) runsSoon() bool {
	select {
	case <-m.running:
		return true
	case <-time.After(clearTime):
		return false
	}
}

// report tells the command of a container that runs, and if it waits for that, when all memory is in the local store.
func (m *making) report(ctx context.Context) error {
	p, now := m.prepared, time.Now()
	if m.loaded.Prewarmed {
		m.say("the device memory of %s was prewarmed", p.Name)
	}
	arrives := p.pull != nil && !p.pull.whole
	r := &Result{Container: p.Name, Namespace: m.request.Namespace, PID: m.task.Pid(), Reference: p.Ref, Digest: p.Descriptor.Digest.String(),
		Image: m.img.Name(), Seconds: now.Sub(p.Since).Seconds(), Running: now.Sub(m.began).Seconds(), PullFirst: p.PullFirst, Warnings: p.Warnings,
		Lazy: p.Lazy(), Eager: p.Eager, GPUPrewarmed: m.loaded.Prewarmed, GPUs: m.loaded.GPUs, Complete: !arrives, Pull: m.pulled()}
	err := m.tell(r)
	if err != nil || r.Complete || !m.request.Choices.Wait {
		return err
	}
	m.say("%s runs, and its memory is on its way", p.Name)
	select {
	case <-m.complete:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	log.G(ctx).Debug("all of its memory is in the local store")
	r.Complete, r.Pull = true, m.pulled()
	return m.tell(r)
}

// pulled is what was fetched until now; nil: nothing was missing.
func (m *making) pulled() *job.Transfer {
	if !m.prepared.Pulled {
		return nil
	}
	return job.Transferred(&m.counts, m.began)
}

// create makes the container, and files for it: rootfs of the base image, the snapshot's difference applied, and the specification.
func (m *making) create(ctx context.Context) (containerd.Container, error) {
	p := m.prepared
	if _, err := m.client.SnapshotService(m.snapshotter).Stat(ctx, p.Name); err == nil {
		return nil, fmt.Errorf("make the rootfs of %s: %w", p.Name, m.taken(p.Name))
	}
	if m.etc = p.Etc; m.etc != "" {
		if err := WriteEtcFiles(m.etc, p.Spec.Hostname); err != nil {
			return nil, Full(m.config.Root, err)
		}
	}
	rootFS := containerd.WithNewSnapshot(p.Name, m.img)
	if l := p.Spec.Linux; l != nil && len(l.UIDMappings) > 0 && len(l.GIDMappings) > 0 {
		rootFS = containerd.WithUserNSRemappedSnapshot(p.Name, m.img, l.UIDMappings, l.GIDMappings)
	}
	// Cancelling a call to containerd does not take back what it does, so short ones are let end and are undone then.
	container, err := m.client.NewContainer(context.WithoutCancel(ctx), p.Name,
		containerd.WithSnapshotter(m.snapshotter),
		rootFS,
		func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
			return m.applyTo(ctx, c.SnapshotKey)
		},
		containerd.WithSpec(p.Spec),
		containerd.WithRuntime(m.runtime, runtimeOptions(p.Spec)),
		containerd.WithContainerLabels(containerLabels(p.Snapshot.Config.Container.Labels, m.request.Namespace, p.Name, p.Ref)),
		daemon.WithDigest(daemon.RestoredExtension, p.Descriptor.Digest),
		containerd.WithAdditionalContainerLabels(map[string]string{daemon.WorkLabel: Mark(m.work.Dir)}),
	)
	if errdefs.IsAlreadyExists(err) {
		return nil, m.taken(p.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("create the container: %w", Full("containerd's root", err))
	}
	return container, nil
}

// applyTo writes what the snapshot's container had changed into the new rootfs.
func (m *making) applyTo(ctx context.Context, key string) error {
	if _, changed := m.prepared.Snapshot.RootFS(); !changed {
		return nil
	}
	mounts, err := m.client.SnapshotService(m.snapshotter).Mounts(ctx, key)
	if err != nil {
		return fmt.Errorf("find the new rootfs: %w", err)
	}
	return m.blame(mounted(ctx, mount.ToProto(mounts), func(root string) error { return m.applyAt(ctx, root) }))
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
