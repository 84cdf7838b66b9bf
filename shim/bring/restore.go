package bring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/baseimage"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/job"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/restorer"
)

// bringing is one restore.
type bringing struct {
	job.Hooks
	o      Options
	client *containerd.Client
	root   string          // of the store
	wanted context.Context // ends when the caller does not want it any more

	*restorer.Plan
	namespace string // of containerd
	process   *restorer.Owner
	was       image.Container // what the snapshot's was
	work      string          // the process's working directory; what is made in containerd is labelled with it
	img       containerd.Image
	task      containerd.Task
	undo      undo
}

// patience is how long a restore process may take to undo what was made, before Restore ends without it.
const patience = 5 * time.Second

// Restore makes a running container of a snapshot. It starts a restore process, which finds and prepares the snapshot. ctx carries containerd's namespace. After an error
// nothing is left of the container, with two exceptions. A [*job.Error] whose Running is true says that it runs. With [Options.Wait], a container that ran, and was ended
// since its memory did not come, is not removed.
func Restore(ctx context.Context, client *containerd.Client, s *store.Store, o Options) (*Result, error) {
	b := &bringing{Hooks: o.OrNobody(), o: o, client: client, root: s.Root(), wanted: ctx}
	b.namespace, _ = namespaces.Namespace(ctx)
	begin := time.Now()
	b.WaitsFor("pull", func() string { return "the registry" })
	ctx, err := b.ask(ctx)
	if err != nil {
		return nil, err
	}
	ran := false
	defer func() {
		if ran {
			b.process.End(0)
			return
		}
		b.process.End(patience)
	}()
	if err := b.plan(ctx); err != nil {
		return nil, b.about(b.because(ctx, err))
	}
	log.G(ctx).Debug("the snapshot is found, fits, and is allowed")
	for _, w := range b.Warnings {
		b.Warn("%s", w)
	}
	runs, err := b.bring(ctx)
	if errors.Is(err, failure.ErrMisfit) {
		return nil, err // it was nothing about this container
	}
	var unreachable *job.Error
	if ran = errors.As(err, &unreachable); ran {
		return nil, unreachable
	}
	if err != nil {
		return nil, b.failed(b.Name, err)
	}
	ran = true
	now := time.Now()
	log.G(ctx).Debug("the container runs")
	if runs.Loaded.Prewarmed {
		b.Say("the device memory of %s was prewarmed", b.Name)
	}
	r := &Result{Container: b.Name, Namespace: b.namespace, PID: b.task.Pid(), Reference: b.Ref, Digest: b.Digest.String(),
		Image: b.img.Name(), Seconds: now.Sub(b.Since).Seconds(), Running: now.Sub(begin).Seconds(), PullFirst: b.PullFirst, Warnings: b.Warnings,
		Lazy: b.Eager == "", Eager: b.Eager, GPUPrewarmed: runs.Loaded.Prewarmed, GPUs: runs.Loaded.GPUs, Complete: !b.Arrives}
	counts := &runs.Counts
	if b.o.Wait && b.Arrives {
		b.Say("%s runs, and its memory is on its way", b.Name)
		if counts, err = b.process.Complete(); err != nil {
			return nil, b.incomplete(ctx, err)
		}
		log.G(ctx).Debug("all of its memory is in the local store")
		r.Complete = true
	}
	if b.Pulled {
		r.Pull = &job.Transfer{Moved: counts.Moved, There: counts.There, Retries: counts.Repeated, Seconds: time.Since(begin).Seconds()}
	}
	if err := b.sweepEtcFiles(ctx); err != nil {
		b.Warn("%v", err)
	}
	return r, nil
}

// ask starts the restore process. It returns a context that ends when the process can do no more; its cause is the reason.
func (b *bringing) ask(ctx context.Context) (_ context.Context, err error) {
	c, r := b.o.Choices, b.o.Registry
	c.Progress, c.Debug = b.Progress != nil, b.o.Debug != nil
	c.Registry = restorer.Registry{PlainHTTP: r.PlainHTTP, Insecure: r.Insecure, CAFile: r.CAFile, Username: r.Username, Password: r.Password, Concurrency: r.Concurrency}
	variables := []string{"CRYO_ROOT=" + b.root}
	if b.o.ConfigFile != "" {
		variables = append(variables, "CRYO_CONFIG="+b.o.ConfigFile)
	}
	request := restorer.Request{Ref: b.o.Ref, ID: b.o.Name, Namespace: b.namespace, Address: b.o.Address, Choices: &c}
	ctx, b.process, err = restorer.Ask(ctx, b.o.Program, request, variables, restorer.Told{Progress: b.Progress, Log: b.o.Debug})
	return ctx, err
}

// plan waits for the restore process's plan. Before it comes, plan checks the container's name and chooses runtime and snapshotter, which only containerd knows.
func (b *bringing) plan(ctx context.Context) (err error) {
	if b.work, err = b.process.Begun(); err != nil {
		return err
	}
	if err := restore.RemoveAbandoned(ctx, b.client, b.work); err != nil && ctx.Err() == nil {
		b.Warn("%v", err)
	}
	if b.o.Name != "" {
		if err := b.checkName(ctx, b.o.Name); err != nil {
			return err // before anything is fetched
		}
	}
	c, err := b.process.Considered()
	if err != nil {
		return err
	}
	b.was = c.Container
	if err := b.admit(ctx, c); err != nil {
		return err
	}
	if err := b.process.Admit(); err != nil {
		return err
	}
	b.Plan, err = b.process.Planned()
	return err
}

// admit refuses what containerd cannot have, and decides by which runtime and snapshotter it has the rest.
func (b *bringing) admit(ctx context.Context, c *restorer.Considered) (err error) {
	if err := b.checkName(ctx, c.Name); err != nil {
		return err
	}
	if b.o.Log != nil && b.o.Log.Scheme == "file" && c.Terminal {
		return restore.Wrong("--log-uri file:// does not work for a container with a terminal: use binary://, or leave it out and attach")
	}
	if b.o.Runtime == "" {
		b.o.Runtime = c.Container.Runtime
		if !slices.Contains(daemon.RuntimeNames, b.o.Runtime) {
			b.o.Runtime = daemon.RuntimeNames[0]
		}
	}
	b.o.Snapshotter, err = baseimage.Snapshotter(ctx, b.client, b.o.Snapshotter, c.Container.Snapshotter)
	return err
}

// checkName refuses a name that containerd does not take, or that is taken.
func (b *bringing) checkName(ctx context.Context, name string) error {
	if err := identifiers.Validate(name); err != nil {
		return restore.Wrong("restore as %s: %v", name, err)
	}
	switch _, err := b.client.ContainerService().Get(ctx, name); {
	case err == nil:
		return b.taken(name)
	case errdefs.IsNotFound(err):
		return nil
	default:
		return fmt.Errorf("restore as %s: %w", name, err)
	}
}

// taken says that a container of this name exists.
func (b *bringing) taken(name string) error {
	return failure.New(errdefs.ErrAlreadyExists, "choose another with --name, or remove that one first",
		"restore as %s: containerd's namespace %s has a container of this name", name, b.namespace)
}

// bring makes the container and its task, and waits until it runs. If it fails, or ctx ends, nothing of them is left, unless the error is a [*job.Error].
func (b *bringing) bring(ctx context.Context) (runs *restorer.Runs, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, b.undo.run(ctx))
		}
	}()
	ctx, done, err := restore.Lease(ctx, b.client, b.work)
	if err != nil {
		return nil, b.because(ctx, err)
	}
	// Last of all, whatever happens: without the lease, containerd may collect what nothing refers to.
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	var unget func(context.Context) error
	if b.img, unget, err = baseimage.Get(ctx, b.client, b.was, b.Ref, b.o.Snapshotter, b.o.Registry); err != nil {
		return nil, b.because(ctx, err)
	}
	b.undo.add("bring the base image", unget)
	container, err := b.create(ctx)
	if err != nil {
		return nil, b.because(ctx, err)
	}
	log.G(ctx).Debug("the container is created")
	if b.task, err = b.start(ctx, container); err != nil {
		if err = b.because(ctx, err); daemon.Gone(err) && b.runs() {
			b.undo.release()
			err = &job.Error{Container: b.Name, Running: true, Restored: true, Err: fmt.Errorf("%s runs, and containerd cannot be reached: %w", b.Name, err),
				Advice: "see that containerd runs; it finds the container then"}
		}
		return nil, err
	}
	if runs, err = b.process.Runs(); err != nil {
		return nil, err
	}
	b.undo.release()
	return runs, nil
}

// runs tells whether the container runs, where containerd cannot be asked. The shim has told the restore process, which this function asks.
func (b *bringing) runs() bool {
	heard := make(chan error, 1)
	go func() {
		_, err := b.process.Runs()
		heard <- err
	}()
	select {
	case err := <-heard:
		return err == nil
	case <-time.After(clearTime):
		return false
	}
}
