package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/api/types"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

// serving is a restore that this process does.
type serving struct {
	config  config.Config
	request worker.Request
	began   time.Time
	ctx     context.Context // ends when the restore is not wanted any more
	cancel  context.CancelCauseFunc
	report  *worker.Report // to the command that has made the container, or to cryo node for a member of a group; nil: the container asks for the restore
	counts  registry.Counts

	store    *store.Store
	work     *store.Work
	here     *Looking
	prepared *Prepared
	asker    *asker           // the container that asks for the restore; nil: a command does
	members  *worker.Together // of the group that a container of a pod is restored with; nil: it is restored alone, or by a command

	tried   atomic.Bool // of a trial: all was restored
	mu      sync.Mutex  // held while it is decided whether the end of the command calls the restore off
	running bool        // whatever becomes of the command; guarded by mu
}

// Why a restore ends that is not wanted any more.
var (
	errGone      = fmt.Errorf("the shim has called the restore off: %w", context.Canceled)
	errCalledOff = fmt.Errorf("the command that asked for the restore has ended: %w", context.Canceled)
)

// Serve runs the restore process. The shim sends it a request over a channel; package worker has the messages.
func Serve(c config.Config) error {
	_ = os.WriteFile("/proc/self/comm", []byte("cryo-restore"), 0) // for ps
	FindHome()
	asked, request, err := worker.Serve(worker.Descriptor)
	if err != nil {
		return err
	}
	defer asked.Close()
	v := &serving{config: c, request: request, began: time.Now()}
	v.ctx, v.cancel = context.WithCancelCause(context.Background())
	defer v.cancel(nil)
	defer v.close()
	asked.Hear(v.gone)
	if request.Order != nil {
		v.reports()
	}
	ordinary, err := v.prepareAll()
	switch {
	case err != nil:
		v.fails(err)
		asked.Tell(worker.Message{Failed: failure.Of(err)})
		return err
	case ordinary:
		asked.Tell(worker.Message{Ordinary: true})
		return nil
	}
	return v.attend(v.ctx, asked)
}

// FindHome sets HOME where it is not set, as in a service of systemd's: Docker's credentials are there.
func FindHome() {
	if os.Getenv("HOME") == "" {
		if u, err := user.Current(); err == nil {
			_ = os.Setenv("HOME", u.HomeDir)
		}
	}
}

// open opens the store, and makes a working directory. For a container that asks it begins to look over the host; pull is how its snapshot is found.
func (v *serving) open() (pull string, err error) {
	if v.store, err = daemon.OpenStore(v.config, v.request.Address); err != nil {
		return "", err
	}
	if v.request.Order == nil {
		if pull, err = allowed(v.ctx, v.store, v.config.Restore.Policy.Registries, v.request.Ref); err != nil {
			return "", err
		}
		v.here = Look(v.ctx, v.config)
	}
	if v.work, err = v.store.Work(v.ctx); err != nil {
		return "", err
	}
	if err := mount.SetTempMountLocation(filepath.Join(v.work.Dir, "mounts")); err != nil {
		return "", fmt.Errorf("make a place for mounts: %w", err)
	}
	return pull, nil
}

// close lets go of all.
func (v *serving) close() {
	if v.prepared != nil {
		v.prepared.Close()
	}
	v.asker.close()
	if v.here != nil {
		v.here.End()
	}
	if v.work != nil {
		_ = v.work.Close() // the next process does it
	}
	v.report.Close()
	if v.request.Order != nil { // of a command that was killed
		_ = store.SweepWork(v.request.Order.Report)
	}
}

// prepare has all ready that can be without the container.
func (v *serving) prepare(o Options, require bool) error {
	by := config.Machine
	if v.request.Order != nil {
		by = config.Person
	}
	j, err := NewJudging(v.config.Trust, by, require)
	if err != nil {
		return err
	}
	o.Registry.Counts = &v.counts
	if v.prepared, err = Prepare(v.ctx, v.store, v.work.Dir, v.request.Ref, v.here, j, o); err != nil {
		return err
	}
	if err := os.Mkdir(v.criu(), 0o700); err != nil {
		return fmt.Errorf("make a working directory: %w", err)
	}
	return nil
}

// criu is CRIU's work directory.
func (v *serving) criu() string { return filepath.Join(v.work.Dir, "criu") }

// unpack unpacks the memory that CRIU reads.
func (v *serving) unpack(ctx context.Context, report image.Progress) error {
	p := v.prepared
	if err := p.Unpacked.Memory(ctx, p.From, image.UnpackOptions{Progress: report, Lazy: p.Lazy(), Wipe: p.wipe}); err != nil {
		return Full(v.store.Root(), err)
	}
	if err := criu.FollowNone(p.Images); err != nil {
		return err
	}
	return giveImages(p.Images, p.Spec)
}

// applyAt writes what the snapshot's container had changed into a root file system.
func (v *serving) applyAt(ctx context.Context, root string) error {
	p := v.prepared
	if _, ok := p.Snapshot.RootFS(); !ok {
		return nil
	}
	return p.Snapshot.ReadRootFS(ctx, p.From, func(layer io.Reader) error { return image.ApplyRootFS(ctx, root, layer, p.Snapshot.MaxRootFS()) })
}

// mounted calls do with the directory where a root file system is mounted.
func mounted(ctx context.Context, target []*types.Mount, do func(root string) error) error {
	var done error
	err := mount.WithTempMount(ctx, mount.FromProto(target), func(root string) error {
		done = do(root)
		return done
	})
	if done != nil {
		return done // err names a directory that is gone
	}
	return err
}

// placedMounts returns the mounts of a specification where they are in the container's root file system. It does not mount that for a specification without bind mounts: these are reviewed as they stand there, and the restored container is
// compared with where they are.
func (v *serving) placedMounts(spec *specs.Spec) (placed []specs.Mount, err error) {
	if !slices.ContainsFunc(spec.Mounts, trust.IsBindMount) {
		return spec.Mounts, nil
	}
	err = mount.WithReadonlyTempMount(v.ctx, mount.FromProto(v.request.Rootfs), func(root string) (err error) {
		placed, err = trust.PlaceMounts(root, spec.Mounts)
		return err
	})
	return placed, err
}

// prepareAll prepares the snapshot for a container that exists. ordinary: the container's image is no snapshot's, and it asks for none.
func (v *serving) prepareAll() (ordinary bool, err error) {
	o, ordinary, err := v.options()
	if err != nil || ordinary {
		return ordinary, err
	}
	if o.Placed, err = v.placedMounts(o.Spec); err != nil {
		return false, err
	}
	if err := v.prepare(o, o.RequireSignature); err != nil {
		return false, err
	}
	p := v.prepared
	// A reader of what does not come is not waited for.
	context.AfterFunc(v.ctx, func() { p.pull.end(context.Cause(v.ctx)) })
	changed := false
	if v.asker != nil {
		if changed, err = checkBase(p.Snapshot, v.asker.chains, v.asker.info.Image); err != nil {
			return false, err
		}
	}
	if err := v.placed(o); err != nil {
		return false, err
	}
	group, both := errgroup.WithContext(v.ctx)
	group.Go(func() error { return v.unpack(both, o.Registry.Progress) })
	group.Go(func() error { return v.changeRootfs(both, changed) })
	if err := group.Wait(); err != nil {
		return false, v.suspect(p.pull.cause(err))
	}
	return false, nil
}

// options returns those of the restore, or that the container's image is an ordinary one.
func (v *serving) options() (o Options, ordinary bool, err error) {
	if v.request.Order != nil {
		if o, err = v.ordered(); err != nil {
			return o, false, err
		}
		_, err = v.open()
		return o, false, err
	}
	if v.asker, err = v.look(); err != nil {
		return o, false, err
	}
	if ordinary, err := v.join(); err != nil || ordinary {
		return o, ordinary, err
	}
	if v.request.Ref == "" {
		ref, ok, err := v.asker.snapshotOf(v.request.Image)
		if err != nil || !ok {
			return o, err == nil, err
		}
		v.request.Ref = ref
	}
	if o, err = annotated(v.config, v.request); err != nil {
		return o, false, err
	}
	if o.Pull, err = v.open(); err != nil {
		return o, false, err
	}
	if v.asker.chains, err = daemon.ChainsOf(v.asker.ctx, v.asker.client, v.asker.info); err != nil {
		return o, false, err
	}
	o.Registry.RootFS = v.asker.rootfs
	return o, false, nil
}

// changeRootfs writes what the snapshot's container had changed into the root file system, unless that is there already.
func (v *serving) changeRootfs(ctx context.Context, changed bool) error {
	p := v.prepared
	unlock, err := worker.LockRootfs(v.request.Bundle) // which the shim has seen to that it can be undone
	switch {
	case err == nil:
		defer unlock()
	case v.request.Order == nil || !errors.Is(err, fs.ErrNotExist): // that of a command is removed as a whole
		return err
	}
	if _, has := p.Snapshot.RootFS(); !has || changed {
		return nil
	}
	return mounted(ctx, v.request.Rootfs, func(root string) error { return v.applyAt(ctx, root) })
}

// changes returns what the restored program learns of what is new, as far as it is known by now.
func (v *serving) changes() *worker.Changes {
	p := v.prepared
	c := worker.Compare(p.was, p.Spec)
	c.Snapshot, c.Digest, c.Frozen = v.request.Ref, p.Descriptor.Digest, p.Snapshot.Config.Created
	c.Addresses.Was = p.Snapshot.Config.Container.Addresses
	return c
}

// attend tells the shim what is prepared, answers it until the container runs, and then brings the rest.
func (v *serving) attend(ctx context.Context, shim *worker.Conversation) error {
	p := v.prepared
	allowed := []string{}
	for _, g := range p.Policy.Allow {
		allowed = append(allowed, string(g))
	}
	shim.Tell(worker.Message{Prepared: &worker.Prepared{
		Digest: p.Descriptor.Digest, Images: p.Images, Work: v.criu(), Warnings: p.Warnings, Origin: p.Origin, Allowed: allowed,
		Lazy: p.Lazy(), Devices: p.hasDevices(), Root: p.store.Root(), Changes: v.changes(), Together: v.together(), Hooks: trust.HookLabels(p.Snapshot.Config.Container.Labels),
		Etc: EtcDir(v.config.Root, v.request.Address, v.request.Namespace, v.request.ID),
	}})
	placing, end := context.WithCancelCause(ctx)
	var memory errgroup.Group
	defer func() {
		end(errGone)
		_ = memory.Wait() // its client has been told; no process depends on it any more
	}()
	// place has some of it put in place, over the channel that came with m.
	place := func(m *worker.Message, do func(*channel.Channel) error) error {
		c, err := m.Channel()
		if err == nil {
			memory.Go(func() error { return v.suspect(do(c)) }) // what is damaged is verified before it is read again
		}
		return err
	}
	for {
		m, ok, err := shim.Next(ctx)
		switch {
		case err != nil:
			v.refuse(shim, err)
			return err
		case !ok:
			return errGone
		case m.Fill != nil:
			err = place(&m, func(c *channel.Channel) error { return p.Fill(placing, c, m.Fill.Rate) })
		case m.Load:
			err = place(&m, func(c *channel.Channel) error {
				keeper, err := m.File("keeper")
				if err != nil {
					return err
				}
				return p.Load(placing, c, keeper)
			})
		case m.Files != nil:
			answer := worker.Message{Reviewed: true}
			if err := p.checkFiles(ctx, *m.Files); err != nil {
				answer = worker.Message{Failed: failure.Of(err)}
			}
			shim.Tell(answer)
		case m.Commit:
			answer := worker.Message{Committed: true}
			if err := v.mayRun(ctx, m.Fenced, m.Stands); err != nil {
				answer = worker.Message{Failed: failure.Of(err)}
			}
			shim.Tell(answer)
		case m.Failed != nil:
			err := v.because(m.Failed)
			v.fails(err)
			shim.Tell(worker.Message{Failed: failure.Of(err)})
		case m.Running != nil && v.isTrial():
			return errRan
		case m.Running != nil:
			return v.run(&memory, *m.Running)
		}
		if err != nil {
			return err
		}
	}
}

// together returns what the container needs to know of its group; nil: it is restored alone.
func (v *serving) together() *worker.Together {
	if v.request.Order == nil {
		return v.members
	}
	return v.request.Order.Together
}

// because returns the reason why a restore has failed with err.
func (v *serving) because(err error) error {
	p := v.prepared
	if errdefs.IsFailedPrecondition(err) {
		if misfit := p.Misfit(v.ctx); misfit != nil {
			return misfit
		}
	}
	return p.pull.because(p.Name, v.suspect(err))
}

// suspect has the store verify the snapshot's blobs before they are read again, if err says that something of it is damaged.
func (v *serving) suspect(err error) error {
	return v.store.Damaged(context.WithoutCancel(v.ctx), v.prepared.Descriptor, err)
}

// runs marks that the container runs: from now on, the end of the command changes nothing. An error: it has been called off before.
func (v *serving) runs() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.running = context.Cause(v.ctx) == nil
	return context.Cause(v.ctx)
}

// gone is called when the shim has ended, or has let go of this process. Where the container runs, no process needs what is missing.
func (v *serving) gone() { v.cancel(errGone) }

// run brings what is missing, the container running, and waits until its memory is in place.
func (v *serving) run(memory *errgroup.Group, loaded gpu.Loaded) error {
	p := v.prepared
	if err := v.runs(); err != nil {
		return err
	}
	if len(loaded.GPUs) == 0 { // none was used
		loaded.GPUs = p.GPUs.Pairs
	}
	result := v.reportRunning(loaded)
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		if v.asker != nil {
			_ = v.note() // without it, the next snapshot shares less with this one
		}
	}()
	defer func() { <-noted }()
	p.pull.begin()
	placed := make(chan error, 1)
	go func() {
		err := memory.Wait()
		if err != nil {
			p.pull.end(err) // no process needs what is pulled
		}
		p.pull.placed()
		placed <- err
	}()
	pulled := p.pull.await()
	if pulled == nil {
		p.release()
		_ = v.work.Release() // all is open that is needed
		v.reportComplete(result)
	}
	filled := <-placed
	if err := cmp.Or(filled, pulled); err != nil {
		err = cutOff(p.Name, true, filled == nil, err)
		v.report.Tell(worker.News{Failed: failure.Of(err), RunsOn: filled == nil})
		return err
	}
	return nil
}

// connect reaches containerd, as the command does or the shim.
func (v *serving) connect(ctx context.Context) (context.Context, *containerd.Client, error) {
	patience := time.Duration(v.config.Containerd.Patience) * time.Second
	return daemon.Connect(ctx, daemon.Options{Address: v.request.Address, Namespace: v.request.Namespace, Patience: patience, Trace: true})
}

// noteTime bounds how long containerd may take to note something of a container, which may wait for nothing else.
const noteTime = 10 * time.Second

// note says of the container in containerd what it was restored from.
func (v *serving) note() error {
	ctx, cancel := context.WithTimeout(v.ctx, noteTime)
	defer cancel()
	ctx, client, err := v.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return daemon.Extend(ctx, client, v.request.ID, daemon.RestoredExtension, v.prepared.Descriptor.Digest)
}
