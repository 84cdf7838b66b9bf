package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/rootfs"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/fill"
	"github.com/cryo-project/cryo/shim/load"
	"github.com/cryo-project/cryo/shim/order"
)

// restore finds the snapshot, plans, and brings the container to life.
func (a *app) restore(ctx context.Context, ref string, f restoreFlags) error {
	options, err := f.registry.resolve(a)
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
	ctx, client, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer closing(ctx, "containerd", client)
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
	here := a.look(ctx)
	defer here.end()
	var pulled registry.Counts
	options.Counts = &pulled
	a.progress.waitsFor("pull", func() string { return "the registry" })
	begin := time.Now()
	ref, desc, pulling, err := a.locate(ctx, s, ref, f.pull, options, j)
	if err != nil {
		return err
	}
	start := time.Now()
	from, ready, err := prewarmed(ctx, s, desc)
	if err != nil {
		return err
	}
	if ready != nil {
		defer closing(ctx, "prewarmed snapshot", ready)
	}
	if pulling != nil {
		defer pulling.Close()
	}
	probing, stop := context.WithCancel(ctx)
	defer stop()
	whyPullFirst := probe(probing, pulling, f)
	if pulling != nil && ready == nil {
		from = pulling
	}
	p, err := a.consider(ctx, client, s, desc, from, ref, f, pulling, work.Dir, here)
	if err != nil {
		return err
	}
	defer p.gpus.close()
	p.warnings = append(j.warning(), p.warnings...)
	p.origin = j.origin
	p.origin.Images = p.images
	eager, err := a.eager(p, f)
	if err != nil {
		return &failedError{op: "restore", name: p.name, err: err}
	}
	if pulling != nil {
		if err := pulling.Settle(ctx); err != nil {
			return err
		}
		if ready == nil {
			p.from = s
		}
	}
	var coming *arriving
	var pullFirst string
	if pulling != nil {
		if ready != nil {
			pullFirst = "it is prewarmed"
		} else if pullFirst, err = whyPullFirst(eager); err != nil {
			return err
		}
		few, most, err := throughCache(ctx, pulling)
		if err != nil {
			return err
		}
		if pullFirst != "" {
			err = pulling.Finish(ctx)
		} else if coming, err = newArriving(ctx, s, pulling, work.Dir, p.snapshot.Config.GPU != nil); err == nil {
			p.from = coming.source
			if coming.whole {
				pulling.First(p.unpacked.OfProcesses())
			}
			coming.headStart(few, most)
		}
		if err != nil {
			return err
		}
		defer coming.close()
		start = time.Now()
	}
	for _, w := range p.warnings {
		a.warn("%s", w)
	}
	warned := len(p.warnings)
	task, img, ran, err := a.bring(ctx, client, s, p, f, eager == "", options, work.Dir, coming)
	var misfit *fit.MisfitError
	if errors.As(err, &misfit) {
		return err // it was nothing about this container
	}
	if err != nil {
		return &failedError{op: "restore", name: p.name, err: err}
	}
	for _, w := range p.warnings[warned:] {
		a.warn("%s", w)
	}
	var pull *transfer
	if pulling != nil {
		pull = transferred(ref, &pulled, begin)
	}
	if err := a.sweepEtcFiles(ctx, client, s.Root()); err != nil {
		a.warn("%v", err)
	}
	a.progress.stop()
	if p.loaded.Prewarmed {
		a.say("the device memory of %s was prewarmed", p.name)
	}
	r := restoreResult{Container: p.name, Namespace: a.namespace, PID: task.Pid(), Reference: ref, Digest: desc.Digest.String(),
		Image: img.Name(), Seconds: ran.Sub(start).Seconds(), Running: ran.Sub(begin).Seconds(), Pull: pull, PullFirst: pullFirst, Warnings: p.warnings,
		Lazy: eager == "", Eager: eager, Prewarmed: ready != nil, GPUPrewarmed: p.loaded.Prewarmed}
	for _, pair := range p.gpus.pairs {
		r.GPUs = append(r.GPUs, restoredGPU(pair))
	}
	if a.json {
		return a.printJSON(r)
	}
	a.line("%s", r.Container)
	return nil
}

// bring makes the container and its task, which has run since ran, and waits for all of coming, which is nil where all is here. If it
// fails, or ctx ends, nothing of them is left.
func (a *app) bring(ctx context.Context, client *containerd.Client, s *store.Store, p *plan, f restoreFlags, lazy bool, o registry.Options, work string, coming *arriving) (_ containerd.Task, _ containerd.Image, ran time.Time, err error) {
	var u undo
	defer func() {
		if err != nil {
			if left := u.run(ctx); left != nil { // the next command needs to know
				err = errors.Join(err, left)
				return
			}
		}
		if left := coming.forget(); left != nil {
			a.warn("%v", left)
		}
	}()
	ctx, late := p.late(ctx)
	defer func() { err = late.judge(err) }() // and whatever it is, nobody hears the driver any more
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
	group.Go(func() error { return p.unpackMemory(both, s, image.UnpackOptions{Progress: a.report(), Lazy: lazy}) })
	group.Go(func() (err error) {
		if img, err = baseImage(both, client, p, o, &u); err != nil {
			return err
		}
		container, err = a.create(both, client, s, p, img, work, &u)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, nil, ran, coming.cause(err)
	}
	criuWork := filepath.Join(work, "criu")
	if err := os.Mkdir(criuWork, 0o700); err != nil {
		return nil, nil, ran, fmt.Errorf("make a working directory: %w", err)
	}
	if err := errors.Join(a.leaveOrder(work, s.Root()), p.origin.Write(criuWork)); err != nil {
		return nil, nil, ran, full(s.Root(), err)
	}
	if err := order.Allow(criuWork, p.allowed()); err != nil {
		return nil, nil, ran, full(s.Root(), err)
	}
	if lazy {
		o := order.Order{Root: s.Root(), Snapshot: p.snapshot.Descriptor, Images: p.images, Arrival: coming.where(), Whole: coming != nil && coming.whole}
		if o.Awaited, err = coming.expect(fill.Command); err == nil {
			err = o.Write(criuWork, order.Memory)
		}
		if err != nil {
			return nil, nil, ran, full(s.Root(), err)
		}
	}
	if g := p.snapshot.Config.GPU; g != nil && slices.ContainsFunc(g.Processes, func(p image.GPUProcess) bool { return len(p.Pieces) > 0 }) {
		o := order.Order{Root: s.Root(), Snapshot: p.snapshot.Descriptor, Images: p.images, Arrival: coming.where(), Whole: true}
		if o.Awaited, err = coming.expect(load.Command); err == nil {
			err = o.Write(criuWork, order.Devices)
		}
		if err != nil {
			return nil, nil, ran, full(s.Root(), err)
		}
	}
	if err := late.said(); err != nil {
		return nil, nil, ran, err
	}
	task, err := a.start(ctx, client, container, p, f, criuWork, &u)
	err = late.judge(err)
	p.gpus.driver.end()
	if err != nil {
		return nil, nil, ran, coming.because(p.name, err)
	}
	ran = time.Now()
	if p.loaded, err = gpu.ReadLoaded(criuWork); err != nil {
		return nil, nil, ran, err
	}
	if coming != nil {
		coming.begin() // not before, but for a little: it would take cores and the line from what makes the container run
		if !coming.whole {
			a.say("%s runs, and its memory is on its way", p.name)
		}
		if err := coming.await(); err != nil {
			return nil, nil, ran, &cutOffError{name: p.name, ran: true, err: err}
		}
	}
	if err := finished(context.WithoutCancel(ctx), container); err != nil {
		return nil, nil, ran, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, nil, ran, err
	}
	u.release()
	return task, img, ran, nil
}

// full gives an error that means a full disk its type.
func full(dir string, err error) error {
	if noSpace(err.Error()) {
		return &fullError{dir: dir, err: err}
	}
	return err
}

// create makes the container, and files for it: rootfs of the base image, the snapshot's difference applied, and the specification.
func (a *app) create(ctx context.Context, client *containerd.Client, s *store.Store, p *plan, img containerd.Image, work string, u *undo) (containerd.Container, error) {
	if p.etc != "" {
		u.add("remove "+p.etc, func(context.Context) error { return os.RemoveAll(p.etc) })
		if err := writeEtcFiles(p.etc, p.spec.Hostname); err != nil {
			return nil, full(s.Root(), err)
		}
	}
	sn := client.SnapshotService(p.snapshotter)
	key := p.name
	if _, err := sn.Stat(ctx, key); err == nil {
		return nil, fmt.Errorf("make the rootfs of %s: %w", p.name, &nameTakenError{name: p.name, namespace: a.namespace})
	}
	prepare := containerd.WithNewSnapshot(key, img)
	if l := p.spec.Linux; l != nil && len(l.UIDMappings) > 0 && len(l.GIDMappings) > 0 {
		prepare = containerd.WithUserNSRemappedSnapshot(key, img, l.UIDMappings, l.GIDMappings)
	}
	rootFS := func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		err := prepare(ctx, client, c)
		if !errdefs.IsAlreadyExists(err) { // else it is that of another command, which restores under the same name
			u.add("remove rootfs "+key, func(ctx context.Context) error { return ignoreNotFound(sn.Remove(ctx, key)) })
		}
		return err
	}
	c := p.snapshot.Config
	// Cancelling a call to containerd does not take back what it does, so short ones are let end and are undone then.
	container, err := client.NewContainer(context.WithoutCancel(ctx), p.name,
		containerd.WithSnapshotter(p.snapshotter),
		rootFS,
		func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
			return applyRootFS(ctx, client, p, c.SnapshotKey)
		},
		containerd.WithSpec(p.spec),
		containerd.WithRuntime(p.runtime, runtimeOptions(p.spec)),
		containerd.WithContainerLabels(containerLabels(c.Container.Labels, a.namespace, p.name, p.snapshot.Descriptor.Digest.String(), p.ref)),
		containerd.WithAdditionalContainerLabels(map[string]string{workLabel: mark(work)}),
	)
	if errdefs.IsAlreadyExists(err) {
		return nil, &nameTakenError{name: p.name, namespace: a.namespace}
	}
	if err != nil {
		return nil, fmt.Errorf("create the container: %w", full("containerd's root", err))
	}
	u.add("remove container "+p.name, func(ctx context.Context) error { return ignoreNotFound(container.Delete(ctx)) })
	return container, nil
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// applyRootFS puts what the snapshot's container had changed into its new rootfs.
func applyRootFS(ctx context.Context, client *containerd.Client, p *plan, key string) error {
	if _, ok := p.snapshot.RootFS(); !ok {
		return nil
	}
	mounts, err := client.SnapshotService(p.snapshotter).Mounts(ctx, key)
	if err != nil {
		return fmt.Errorf("find the new rootfs: %w", err)
	}
	var applied error
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		applied = p.snapshot.ReadRootFS(ctx, p.from, func(layer io.Reader) error { return rootfs.Apply(ctx, root, layer) })
		return applied
	})
	if applied != nil {
		log.G(ctx).WithError(err).Debug("apply rootfs") // err names a directory that is gone
		return applied
	}
	return err
}
