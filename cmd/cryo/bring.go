package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/containerd/api/types"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/restorer"
)

// restoring is a container that this command and a restore process make of a snapshot.
type restoring struct {
	*restorer.Plan
	process     *restorer.Owner
	was         image.Container // what the snapshot's was
	work        string          // the process's working directory; what is made in containerd is labelled with it
	runtime     string
	snapshotter string
}

// patience is how long a restore process may take to undo what was made, before the command ends without it.
const patience = 5 * time.Second

// restore starts a restore process, which finds and prepares the snapshot, and makes a running container of it.
func (a *app) restore(ctx context.Context, ref string, f restoreFlags) error {
	options, err := f.registry.resolve(ctx, a)
	if err != nil {
		return err
	}
	settings, err := a.config()
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
	if ref, err = a.named(ctx, s, ref, f.pull); err != nil {
		return err
	}
	begin := time.Now()
	a.progress.waitsFor("pull", func() string { return "the registry" })
	request := restorer.Request{Ref: ref, ID: f.name, Namespace: a.namespace, Address: a.address, Choices: f.choices(a, options)}
	ctx, process, err := restorer.Ask(ctx, a.program, request, a.variables(settings), restorer.Told{
		Progress: a.report(), Log: func(line string) { fmt.Fprint(a.stderr, line) },
	})
	if err != nil {
		return err
	}
	ran := false
	defer func() {
		if ran {
			process.End(0)
			return
		}
		process.End(patience)
	}()
	p := &restoring{process: process, runtime: f.runtime}
	if err := a.plan(ctx, client, f, p); err != nil {
		return about(because(ctx, err))
	}
	a.stages.done(ctx, "the snapshot is found, fits, and is allowed")
	for _, w := range p.Warnings {
		a.warn("%s", w)
	}
	task, img, runs, err := a.bring(ctx, client, s, p, f, options)
	if errors.Is(err, failure.ErrMisfit) {
		return err // it was nothing about this container
	}
	var unreachable *unreachableError
	if ran = errors.As(err, &unreachable); ran {
		return unreachable
	}
	if err != nil {
		return &failedError{op: "restore", name: p.Name, err: err}
	}
	ran = true
	now := time.Now()
	a.stages.done(ctx, "the container runs")
	if runs.Loaded.Prewarmed {
		a.say("the device memory of %s was prewarmed", p.Name)
	}
	r := restoreResult{Container: p.Name, Namespace: a.namespace, PID: task.Pid(), Reference: p.Ref, Digest: p.Digest.String(),
		Image: img.Name(), Seconds: now.Sub(p.Since).Seconds(), Running: now.Sub(begin).Seconds(), PullFirst: p.PullFirst, Warnings: p.Warnings,
		Lazy: p.Eager == "", Eager: p.Eager, GPUPrewarmed: runs.Loaded.Prewarmed, Complete: !p.Arrives}
	counts := &runs.Counts
	if f.wait && p.Arrives {
		a.say("%s runs, and its memory is on its way", p.Name)
		if counts, err = process.Complete(); err != nil {
			return a.incomplete(ctx, task, p.Name, err)
		}
		a.stages.done(ctx, "all of its memory is in the local store")
		r.Complete = true
	}
	if p.Pulled {
		r.Pull = &transfer{Moved: counts.Moved, There: counts.There, Retries: counts.Repeated, Seconds: time.Since(begin).Seconds()}
	}
	for _, pair := range runs.Loaded.GPUs {
		r.GPUs = append(r.GPUs, restoredGPU(pair))
	}
	if err := a.sweepEtcFiles(ctx, client, s.Root()); err != nil {
		a.warn("%v", err)
	}
	a.progress.stop()
	if a.json {
		return a.printJSON(r)
	}
	a.line("%s", r.Container)
	return nil
}

// about adds the container's name to an error of the restore process that concerns a container.
func about(err error) error {
	var of *restorer.ContainerError
	if errors.As(err, &of) {
		return &failedError{op: "restore", name: of.Name, err: of.Err}
	}
	return err
}

// incomplete gives the error of cryo restore --wait where the wait has failed: the container runs on, or it was ended.
func (a *app) incomplete(ctx context.Context, task containerd.Task, name string, err error) error {
	if errors.Is(err, errInterrupted) {
		return &waitError{name: name}
	}
	var of *restorer.ContainerError
	if errors.As(err, &of) && of.RunsOn {
		return &incompleteError{of}
	}
	// The shim is ending the container. The command says so when it has ended.
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearTime)
	defer cancel()
	if ended, err := task.Wait(waiting); err == nil {
		<-ended
	}
	return about(err)
}

// incompleteError says that a container runs, and that not all of its snapshot is in the local store.
type incompleteError struct{ *restorer.ContainerError }

func (e *incompleteError) Unwrap() error { return e.ContainerError }

func (e *incompleteError) left() (string, left) { return e.Name, left{Running: true} }

// waitError says that a command was interrupted that waited for a container's memory.
type waitError struct{ name string }

func (e *waitError) Error() string { return "wait for the memory of " + e.name + ": interrupted" }

// Hint says what becomes of the container.
func (e *waitError) Hint() string { return e.name + " runs on, and its memory still comes" }

func (e *waitError) Unwrap() error { return errInterrupted }

func (e *waitError) left() (string, left) { return e.name, left{Running: true} }

// variables give the restore process the configuration of this command.
func (a *app) variables(c config.Config) []string {
	all := []string{"CRYO_ROOT=" + c.Root}
	if a.configPath != "" {
		all = append(all, "CRYO_CONFIG="+a.configPath)
	}
	return all
}

// choices gives the flags in the form in which they are sent to the restore process.
func (f *restoreFlags) choices(a *app, o registry.Options) *restorer.Choices {
	c := &restorer.Choices{
		Pull: f.pull, Allow: f.allow, Force: f.force, NetworkNS: f.networkNS, Eager: f.eager, PullFirst: f.pullFirst, RequireSignature: f.requireSignature,
		Devices: f.gpu.devices, GPUs: f.gpu.gpus, Progress: a.report() != nil, Debug: a.debug,
		Registry: restorer.Registry{PlainHTTP: o.PlainHTTP, Insecure: o.Insecure, CAFile: o.CAFile, Username: o.Username, Password: o.Password, Concurrency: o.Concurrency},
	}
	for _, m := range f.replace {
		c.Mounts = append(c.Mounts, restorer.Mount(m))
	}
	return c
}

// plan waits for the restore process's plan. Before it comes, plan checks the container's name and chooses runtime and snapshotter, which only containerd knows.
func (a *app) plan(ctx context.Context, client *containerd.Client, f restoreFlags, p *restoring) (err error) {
	if p.work, err = p.process.Begun(); err != nil {
		return err
	}
	if err := restore.RemoveAbandoned(ctx, client, p.work); err != nil && ctx.Err() == nil {
		a.warn("%v", err)
	}
	if f.name != "" {
		if err := a.checkName(ctx, client, f.name); err != nil {
			return err // before anything is fetched
		}
	}
	c, err := p.process.Considered()
	if err != nil {
		return err
	}
	p.was = c.Container
	if err := a.admit(ctx, client, c, f, p); err != nil {
		return err
	}
	if err := p.process.Admit(); err != nil {
		return err
	}
	p.Plan, err = p.process.Planned()
	return err
}

// admit refuses what containerd cannot have, and decides by which runtime and snapshotter it has the rest.
func (a *app) admit(ctx context.Context, client *containerd.Client, c *restorer.Considered, f restoreFlags, p *restoring) (err error) {
	if err := a.checkName(ctx, client, c.Name); err != nil {
		return err
	}
	if f.log != nil && f.log.Scheme == "file" && c.Terminal {
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

// bring makes the container and its task, and waits until it runs. If it fails, or ctx ends, nothing of them is left.
func (a *app) bring(ctx context.Context, client *containerd.Client, s *store.Store, p *restoring, f restoreFlags, o registry.Options) (_ containerd.Task, _ containerd.Image, runs *restorer.Runs, err error) {
	var u undo
	defer func() {
		if err != nil {
			err = errors.Join(err, u.run(ctx))
		}
	}()
	leased, done, err := restore.Lease(context.WithoutCancel(ctx), client, p.work)
	if err != nil {
		return nil, nil, nil, err
	}
	id, _ := leases.FromContext(leased)
	ctx = leases.WithLease(ctx, id)
	// Last of all, whatever happens: without the lease, containerd may collect what nothing refers to.
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	img, err := baseImage(ctx, client, base{container: p.was, ref: p.Ref, snapshotter: p.snapshotter}, o, &u)
	if err != nil {
		return nil, nil, nil, because(ctx, err)
	}
	container, err := a.create(ctx, client, s, p, img, &u)
	if err != nil {
		return nil, nil, nil, because(ctx, err)
	}
	a.stages.done(ctx, "the container is created")
	task, err := a.start(ctx, client, container, p, f, &u)
	if err != nil {
		if err = because(ctx, err); containerdGone(err) && p.runs() {
			u.release()
			err = &unreachableError{name: p.Name, err: err}
		}
		return nil, nil, nil, err
	}
	if runs, err = p.process.Runs(); err != nil {
		return nil, nil, nil, err
	}
	u.release()
	return task, img, runs, nil
}

// runs tells whether the container runs. It is for when containerd cannot be asked: the shim tells the restore process, and that tells this command.
func (p *restoring) runs() bool {
	heard := make(chan error, 1)
	go func() {
		_, err := p.process.Runs()
		heard <- err
	}()
	select {
	case err := <-heard:
		return err == nil
	case <-time.After(clearTime):
		return false
	}
}

// unreachableError says that a container was restored while containerd went away. Its kind is its cause's.
type unreachableError struct {
	name string
	err  error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("%s runs, and containerd cannot be reached: %v", e.name, e.err)
}

// Hint says what to do.
func (e *unreachableError) Hint() string {
	return "see that containerd runs; it finds the container then"
}

func (e *unreachableError) Unwrap() error { return e.err }

func (e *unreachableError) left() (string, left) { return e.name, left{Running: true} }

// because gives the restore process's error instead of err if that process has failed: then err only follows from it. An interrupt, and a restore that the shim has ended, are not such failures.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errInterrupted) && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// create makes the container, and files for it: rootfs of the base image, the snapshot's difference applied, and the specification.
func (a *app) create(ctx context.Context, client *containerd.Client, s *store.Store, p *restoring, img containerd.Image, u *undo) (containerd.Container, error) {
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
			u.add("remove rootfs "+key, func(ctx context.Context) error { return restore.IgnoreNotFound(sn.Remove(ctx, key)) })
		}
		return err
	}
	// Cancelling a call to containerd does not take back what it does, so short ones are let end and are undone then.
	container, err := client.NewContainer(context.WithoutCancel(ctx), p.Name,
		containerd.WithSnapshotter(p.snapshotter),
		rootFS,
		func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
			return applyRootFS(ctx, client, p, c.SnapshotKey)
		},
		containerd.WithSpec(p.Spec),
		containerd.WithRuntime(p.runtime, runtimeOptions(p.Spec)),
		containerd.WithContainerLabels(containerLabels(p.was.Labels, a.namespace, p.Name, p.Digest.String(), p.Ref)),
		containerd.WithAdditionalContainerLabels(map[string]string{restore.WorkLabel: restore.Mark(p.work)}),
	)
	if errdefs.IsAlreadyExists(err) {
		return nil, &nameTakenError{name: p.Name, namespace: a.namespace}
	}
	if err != nil {
		return nil, fmt.Errorf("create the container: %w", restore.Full("containerd's root", err))
	}
	u.add("remove container "+p.Name, func(ctx context.Context) error { return restore.IgnoreNotFound(container.Delete(ctx)) })
	return container, nil
}

// applyRootFS has what the snapshot's container had changed put into its new rootfs.
func applyRootFS(ctx context.Context, client *containerd.Client, p *restoring, key string) error {
	if !p.RootFS {
		return nil
	}
	mounts, err := client.SnapshotService(p.snapshotter).Mounts(ctx, key)
	if err != nil {
		return fmt.Errorf("find the new rootfs: %w", err)
	}
	var all []*types.Mount
	for _, m := range mounts {
		all = append(all, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return p.process.Apply(all)
}
