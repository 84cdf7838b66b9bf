package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// restoring is a snapshot that was prepared, and how containerd is to have it.
type restoring struct {
	*restore.Prepared
	runtime     string
	snapshotter string
}

// restore finds the snapshot, plans, and brings the container to life.
func (a *app) restore(ctx context.Context, ref string, f restoreFlags) error {
	options, err := f.registry.resolve(ctx, a)
	if err != nil {
		return err
	}
	j, err := a.judging(f.requireSignature)
	if err != nil {
		return err
	}
	s, err := a.store()
	if err != nil {
		return err
	}
	settings, err := a.config()
	if err != nil {
		return err
	}
	ctx, client, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer closing(ctx, "containerd", client)
	if ref, err = a.named(ctx, s, ref, f.pull); err != nil {
		return err
	}
	work, err := s.Work(ctx)
	if err != nil {
		return err
	}
	defer closing(ctx, "work", work)
	if err := mountIn(work.Dir); err != nil {
		return err
	}
	if err := removeAbandoned(ctx, client, work.Dir); err != nil {
		a.warn("%v", err)
	}
	if f.name != "" {
		if err := a.checkName(ctx, client, f.name); err != nil {
			return err // before anything is fetched
		}
	}
	here := restore.Look(ctx, settings)
	defer here.End()
	var pulled registry.Counts
	options.Counts = &pulled
	a.progress.waitsFor("pull", func() string { return "the registry" })
	begin := time.Now()
	p := &restoring{runtime: f.runtime}
	o := f.options(settings)
	o.Namespace, o.Address, o.Registry = a.namespace, a.address, options
	o.Check = func(c image.Config, name string, spec *specs.Spec) error {
		return a.admit(ctx, client, c, name, spec, f, p)
	}
	p.Prepared, err = restore.Prepare(ctx, s, work.Dir, ref, here, j, o)
	var unusable *restore.ImagesError
	if errors.As(err, &unusable) {
		return &failedError{op: "restore", name: unusable.Name, err: err}
	}
	if err != nil {
		return err
	}
	defer p.Close()
	a.stages.done(ctx, "the snapshot is found, fits, and is allowed")
	for _, w := range p.Warnings {
		a.warn("%s", w)
	}
	task, img, ran, err := a.bring(ctx, client, s, p, f, options, work.Dir)
	err = s.Damaged(context.WithoutCancel(ctx), p.Descriptor, err)
	var misfit *fit.MisfitError
	if errors.As(err, &misfit) {
		return err // it was nothing about this container
	}
	if err != nil {
		return &failedError{op: "restore", name: p.Name, err: err}
	}
	var pull *transfer
	if p.Pulled {
		pull = transferred(p.Ref, &pulled, begin)
	}
	if err := a.sweepEtcFiles(ctx, client, s.Root()); err != nil {
		a.warn("%v", err)
	}
	a.progress.stop()
	if p.Loaded.Prewarmed {
		a.say("the device memory of %s was prewarmed", p.Name)
	}
	r := restoreResult{Container: p.Name, Namespace: a.namespace, PID: task.Pid(), Reference: p.Ref, Digest: p.Descriptor.Digest.String(),
		Image: img.Name(), Seconds: ran.Sub(p.Since).Seconds(), Running: ran.Sub(begin).Seconds(), Pull: pull, PullFirst: p.PullFirst, Warnings: p.Warnings,
		Lazy: p.Lazy(), Eager: p.Eager, Prewarmed: p.Prewarmed, GPUPrewarmed: p.Loaded.Prewarmed}
	for _, pair := range p.Loaded.GPUs {
		r.GPUs = append(r.GPUs, restoredGPU(pair))
	}
	if a.json {
		return a.printJSON(r)
	}
	a.line("%s", r.Container)
	return nil
}

// options are what the flags choose of a restore.
func (f *restoreFlags) options(c config.Config) restore.Options {
	return restore.Options{
		Config: c, Name: f.name, Pull: f.pull, Mounts: f.replace, NetworkNS: f.networkNS, Policy: f.policy, Force: f.force,
		GPUs: f.gpu.options(), Eager: f.eager, PullFirst: f.pullFirst,
	}
}

// admit refuses what containerd cannot have, and decides by which runtime and snapshotter it has the rest.
func (a *app) admit(ctx context.Context, client *containerd.Client, c image.Config, name string, spec *specs.Spec, f restoreFlags, p *restoring) (err error) {
	if err := a.checkName(ctx, client, name); err != nil {
		return err
	}
	if f.log != nil && f.log.Scheme == "file" && spec.Process != nil && spec.Process.Terminal {
		return &usageError{command: "cryo restore", problem: "--log-uri file:// does not work for a container with a terminal: use binary://, or leave it out and attach"}
	}
	if p.runtime == "" {
		p.runtime = c.Container.Runtime
		if !slices.Contains(runtimeNames, p.runtime) {
			p.runtime = runtimeNames[0]
		}
	}
	p.snapshotter, err = chooseSnapshotter(ctx, client, f.snapshotter, c.Container.Snapshotter)
	return err
}

// checkName refuses a name that containerd does not take, or that is taken.
func (a *app) checkName(ctx context.Context, client *containerd.Client, name string) error {
	if err := identifiers.Validate(name); err != nil {
		return &usageError{command: "cryo restore", problem: fmt.Sprintf("restore as %s: %v", name, err)}
	}
	switch _, err := client.ContainerService().Get(ctx, name); {
	case err == nil:
		return &nameTakenError{name: name, namespace: a.namespace}
	case errdefs.IsNotFound(err):
		return nil
	default:
		return fmt.Errorf("restore as %s: %w", name, err)
	}
}

// chooseSnapshotter takes the one asked for, else the snapshot's if this containerd has it, else containerd's default.
func chooseSnapshotter(ctx context.Context, client *containerd.Client, asked, had string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	if had != "" {
		plugins, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
		if err != nil {
			return "", fmt.Errorf("list containerd's snapshotters: %w", err)
		}
		for _, p := range plugins.Plugins {
			if p.ID == had && p.InitErr == nil {
				return had, nil
			}
		}
	}
	name, err := client.GetLabel(ctx, "containerd.io/defaults/snapshotter")
	if err != nil {
		return "", fmt.Errorf("find containerd's default snapshotter: %w", err)
	}
	if name == "" {
		name = defaultSnapshotter
	}
	return name, nil
}

// defaultSnapshotter is containerd's own default on Linux.
const defaultSnapshotter = "overlayfs"

// bring makes the container and its task, which has run since ran, and waits for all memory that is still being pulled. If it
// fails, or ctx ends, nothing of them is left.
func (a *app) bring(ctx context.Context, client *containerd.Client, s *store.Store, p *restoring, f restoreFlags, o registry.Options, work string) (_ containerd.Task, _ containerd.Image, ran time.Time, err error) {
	var u undo
	defer func() {
		if err != nil {
			if left := u.run(ctx); left != nil { // the next command needs to know
				err = errors.Join(err, left)
				return
			}
		}
		if left := p.Forget(); left != nil {
			a.warn("%v", left)
		}
	}()
	leased, done, err := lease(context.WithoutCancel(ctx), client, work)
	if err != nil {
		return nil, nil, ran, err
	}
	id, _ := leases.FromContext(leased)
	ctx = leases.WithLease(ctx, id)
	// Last of all, whatever happens: without the lease, containerd may collect what nothing refers to.
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	var img containerd.Image
	var container containerd.Container
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error {
		return p.UnpackMemory(both, s, image.UnpackOptions{Progress: a.report(), Lazy: p.Lazy()})
	})
	group.Go(func() (err error) {
		if img, err = baseImage(both, client, base{container: p.Snapshot.Config.Container, ref: p.Ref, snapshotter: p.snapshotter}, o, &u); err != nil {
			return err
		}
		container, err = a.create(both, client, s, p, img, work, &u)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, nil, ran, p.Cause(err)
	}
	a.stages.done(ctx, "the container is created, and CRIU's images are unpacked")
	criuWork := filepath.Join(work, "criu")
	if err := os.Mkdir(criuWork, 0o700); err != nil {
		return nil, nil, ran, fmt.Errorf("make a working directory: %w", err)
	}
	if err := a.leaveOrder(work, s.Root()); err != nil {
		return nil, nil, ran, restore.Full(s.Root(), err)
	}
	if err := p.WriteOrders(criuWork); err != nil {
		return nil, nil, ran, err
	}
	task, err := a.start(ctx, client, container, p, f, criuWork, &u)
	if errdefs.IsFailedPrecondition(err) {
		if misfit := p.Misfit(ctx); misfit != nil {
			return nil, nil, ran, misfit
		}
	}
	if err != nil {
		return nil, nil, ran, p.Because(err)
	}
	ran = time.Now()
	a.stages.done(ctx, "the container runs")
	if p.Loaded, err = gpu.ReadLoaded(criuWork); err != nil {
		return nil, nil, ran, err
	}
	if len(p.Loaded.GPUs) == 0 { // none was used
		p.Loaded.GPUs = p.GPUs.Pairs
	}
	if arrives, whole := p.Arrives(); arrives && !whole {
		a.say("%s runs, and its memory is on its way", p.Name)
	}
	if err := p.Await(); err != nil {
		return nil, nil, ran, err
	}
	a.stages.done(ctx, "all of its memory is in the local store")
	if err := finished(context.WithoutCancel(ctx), container); err != nil {
		return nil, nil, ran, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, nil, ran, err
	}
	u.release()
	return task, img, ran, nil
}

// create makes the container, and files for it: rootfs of the base image, the snapshot's difference applied, and the specification.
func (a *app) create(ctx context.Context, client *containerd.Client, s *store.Store, p *restoring, img containerd.Image, work string, u *undo) (containerd.Container, error) {
	if p.Etc != "" {
		u.add("remove "+p.Etc, func(context.Context) error { return os.RemoveAll(p.Etc) })
		if err := restore.WriteEtcFiles(p.Etc, p.Spec.Hostname); err != nil {
			return nil, restore.Full(s.Root(), err)
		}
	}
	sn := client.SnapshotService(p.snapshotter)
	key := p.Name
	if _, err := sn.Stat(ctx, key); err == nil {
		return nil, fmt.Errorf("make the rootfs of %s: %w", p.Name, &nameTakenError{name: p.Name, namespace: a.namespace})
	}
	prepare := containerd.WithNewSnapshot(key, img)
	if l := p.Spec.Linux; l != nil && len(l.UIDMappings) > 0 && len(l.GIDMappings) > 0 {
		prepare = containerd.WithUserNSRemappedSnapshot(key, img, l.UIDMappings, l.GIDMappings)
	}
	rootFS := func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		err := prepare(ctx, client, c)
		if !errdefs.IsAlreadyExists(err) { // else it is that of another command, which restores under the same name
			u.add("remove rootfs "+key, func(ctx context.Context) error { return ignoreNotFound(sn.Remove(ctx, key)) })
		}
		return err
	}
	c := p.Snapshot.Config
	// Cancelling a call to containerd does not take back what it does, so short ones are let end and are undone then.
	container, err := client.NewContainer(context.WithoutCancel(ctx), p.Name,
		containerd.WithSnapshotter(p.snapshotter),
		rootFS,
		func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
			return applyRootFS(ctx, client, p, c.SnapshotKey)
		},
		containerd.WithSpec(p.Spec),
		containerd.WithRuntime(p.runtime, runtimeOptions(p.Spec)),
		containerd.WithContainerLabels(containerLabels(c.Container.Labels, a.namespace, p.Name, p.Snapshot.Descriptor.Digest.String(), p.Ref)),
		containerd.WithAdditionalContainerLabels(map[string]string{workLabel: mark(work)}),
	)
	if errdefs.IsAlreadyExists(err) {
		return nil, &nameTakenError{name: p.Name, namespace: a.namespace}
	}
	if err != nil {
		return nil, fmt.Errorf("create the container: %w", restore.Full("containerd's root", err))
	}
	u.add("remove container "+p.Name, func(ctx context.Context) error { return ignoreNotFound(container.Delete(ctx)) })
	return container, nil
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// applyRootFS puts what the snapshot's container had changed into its new rootfs.
func applyRootFS(ctx context.Context, client *containerd.Client, p *restoring, key string) error {
	if _, ok := p.Snapshot.RootFS(); !ok {
		return nil
	}
	mounts, err := client.SnapshotService(p.snapshotter).Mounts(ctx, key)
	if err != nil {
		return fmt.Errorf("find the new rootfs: %w", err)
	}
	var applied error
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		applied = p.ApplyRootFS(ctx, root)
		return applied
	})
	if applied != nil {
		log.G(ctx).WithError(err).Debug("apply rootfs") // err names a directory that is gone
		return applied
	}
	return err
}
