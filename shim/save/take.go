package save

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// taking is one checkpoint.
type taking struct {
	Options
	client *containerd.Client
	store  *store.Store
	name   string        // Ref in full
	sender *sender       // where the snapshot goes while it is taken
	parent *image.Parent // nil: none
	others []netip.Addr  // addresses of the other members of the group
	shim   *worker.Shim
}

// snapshot takes a snapshot, names it, signs it and sends it, as o says. ctx carries containerd's namespace. Without a result there is no snapshot, and the container
// is as it was or the error is of the kind [failure.ErrLost]. With a result the snapshot is complete in the store, and an error says what did not come about
// afterwards, or that the container is lost all the same.
//
// containerd's clients hear of it, see [EndedTopic].
func snapshot(ctx context.Context, client *containerd.Client, shim *worker.Shim, s *store.Store, o Options) (r *Result, err error) {
	defer func() { tell(ctx, client, o, r, err) }()
	name, err := store.Normalize(o.Ref)
	if err != nil {
		return nil, err
	}
	o.Hooks = o.Hooks.OrNobody()
	t := &taking{Options: o, client: client, shim: shim, store: s, name: name, sender: &sender{}}
	if o.Push != nil {
		if t.sender, err = newSender(ctx, s, o.Ref, *o.Push); err != nil {
			return nil, err
		}
		defer t.sender.close()
		t.WaitsFor("push", t.sender.pushWaits)
	}
	t.WaitsFor("dump", func() string { return "CRIU or the disk" })
	t.WaitsFor("precopy", func() string { return "the GPUs or the disk" })
	t.WaitsFor("devices", func() string { return "the GPUs or the disk" })
	desc, r, err := t.take(ctx)
	if r == nil || err != nil {
		return r, err
	}
	if t.Discard {
		defer t.discard(ctx, desc)
	}
	if t.Step == nil { // else it is pushed
		err = t.signAndPush(ctx, desc, r)
	}
	if r.lost != nil {
		err = &restore.JobError{Container: r.Container, Lost: true, Snapshot: r.Digest, Advice: "its snapshot is complete: cryo restore " + t.Ref, Err: errors.Join(r.lost, err)}
	}
	return r, err
}

func (t *taking) take(ctx context.Context) (desc ocispec.Descriptor, _ *Result, _ error) {
	allowed := make(chan error, 1)
	go func() { allowed <- t.sender.allowed(ctx, t.Container) }()
	sub, err := t.examine(ctx)
	if err != nil {
		return desc, nil, err
	}
	if err := t.checkVerify(sub); err != nil {
		return desc, nil, err
	}
	log.G(ctx).Debug("the container was examined")
	if err := <-allowed; err != nil {
		return desc, nil, err
	}
	if err := t.awaitReady(ctx, sub); err != nil {
		return desc, nil, err
	}
	if t.SegmentSize == 0 {
		all, _ := resident(sub.process.pid)
		t.SegmentSize = segmentSize(sub.gpus, all)
	}
	if t.Push != nil {
		log.G(ctx).Debug("the registry lets us push")
		if !t.SnapshotOnly {
			t.sender.image(t.client, sub.config, t.Ref, *t.Push)
		}
	}
	warnings := []string{}
	if beside := sub.process.beside(); len(beside) > 0 {
		warnings = append(warnings, "the snapshot will not have what exec has started in "+sub.name+": "+strings.Join(beside, ", "))
	}
	warnings = append(warnings, criu.RestoreWarnings(criu.ProcessTree(sub.process.pid))...)
	if w := nerdctlNetwork(sub.info.Labels); w != "" {
		warnings = append(warnings, w)
	}
	for _, w := range warnings {
		t.Warn("%s", w)
	}
	op, err := t.store.Begin(ctx)
	if err != nil {
		return desc, nil, err
	}
	if err := t.store.CheckWritable(ctx); err != nil { // the name is written when the container is frozen, or has ended
		return desc, nil, errors.Join(err, op.Close())
	}
	work, err := t.prepare(ctx, sub) // members of a group wait for each other there, if they are on one host
	if err != nil {
		return desc, nil, failed(ctx, t.Container, errors.Join(t.roomless(err), op.Close()))
	}
	defer func() { _ = work.Close() }() // the next process does it
	admitted, err := t.pass(ctx, worker.Reached{Step: worker.Admitted, Addresses: sub.config.Container.Addresses})
	if err != nil {
		return desc, nil, errors.Join(err, op.Close())
	}
	t.others = admitted.Others
	desc, r, err := t.freeze(ctx, sub, work.Dir)
	if err != nil {
		err = sub.lost(t.roomless(err))
		// What was written of the snapshot goes.
		if abandoned := op.Abandon(); abandoned != nil {
			err = errors.Join(err, abandoned)
		}
		return desc, nil, failed(ctx, t.Container, err)
	}
	if t.GPUEngine != image.DriverEngine {
		for _, left := range LeftToDriver(sub.config.GPU) {
			t.Warn("process %s", left)
			warnings = append(warnings, "process "+left)
		}
	}
	r.Warnings = warnings
	return desc, r, op.Close()
}

// prepare makes a working directory, and finds the snapshot with which this one shares its memory.
func (t *taking) prepare(ctx context.Context, sub *candidate) (*store.Work, error) {
	work, err := t.store.Work(ctx)
	if err != nil {
		return nil, err
	}
	if err := restore.RemoveAbandoned(ctx, t.client, work.Dir); err != nil {
		t.Warn("%v", err)
	}
	if t.parent, err = t.parentOf(ctx, sub.info); err != nil {
		return nil, errors.Join(err, work.Close())
	}
	return work, nil
}

// roomless adds a hint to an error that the store's file system is full. It returns other errors as they are.
func (t *taking) roomless(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.As(err, new(*failure.Error)) && errdefs.IsResourceExhausted(err) {
		return restore.NoRoom(t.store.Root(), err)
	}
	return err
}

// pass passes a step of a member of a group. The shim does not take the waiting for a process that does nothing any more.
func (t *taking) pass(ctx context.Context, at worker.Reached) (worker.Permission, error) {
	if t.Step != nil {
		defer t.shim.Waiting()()
	}
	return t.Pass(ctx, at)
}

// packOptions are the choices about segments.
func (t *taking) packOptions() image.PackOptions {
	return image.PackOptions{SegmentSize: t.SegmentSize, Compression: t.Compression, Parent: t.parent, Progress: t.Progress}
}

// freeze does what happens while the container stands still, and what comes after.
func (t *taking) freeze(ctx context.Context, sub *candidate, work string) (desc ocispec.Descriptor, _ *Result, err error) {
	images, criuWork := filepath.Join(work, "images"), filepath.Join(work, "criu")
	for _, dir := range []string{images, criuWork} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return desc, nil, fmt.Errorf("make a working directory: %w", err)
		}
	}
	changed, err := changesOf(ctx, t.client, sub.info)
	if err != nil {
		return desc, nil, err
	}
	m, err := t.takeIn(ctx, sub.process.pid, images, work)
	if err != nil {
		return desc, nil, err
	}
	defer m.close()
	d := t.takeInDevices(ctx, images, work)
	defer d.close()
	h, dumped, err := t.hold(ctx, sub, images, criuWork)
	if err != nil {
		return desc, nil, d.explain(ctx, m.explain(ctx, err))
	}
	defer func() {
		if err == nil {
			err = h.close(ctx)
		} else {
			err = errors.Join(err, h.giveUp())
		}
	}()
	intake, err := m.arrived()
	if err != nil {
		return desc, nil, err
	}
	t.Ended("dump")
	log.G(ctx).Debug("the container is frozen and dumped")
	defer t.keepLogs(criuWork)
	d.dumped()
	start := time.Now()
	files, err := changed.capture(ctx, work)
	if err != nil {
		return desc, nil, err
	}
	log.G(ctx).Debug("changed files are copied")
	times := image.Timings{Dump: dumped.DumpSeconds, RootFS: time.Since(start).Seconds()}
	var device *image.DeviceIntake
	if dumped.Devices && (!dumped.DevicesPending || !t.LeaveRunning) {
		if device, err = d.arrived(ctx, h); err != nil {
			return desc, nil, err
		}
	}
	var released checkpoint.Released
	var lost error // why the container does not run on; what has been dumped is all that there is of it
	defer func() {
		if lost != nil && err != nil {
			err = lost
		}
	}()
	if t.LeaveRunning {
		if released, err = h.release(ctx, checkpoint.Resume); err != nil {
			if err = sub.lost(err); !isLost(err) {
				return desc, nil, d.explain(ctx, err)
			}
			lost = err
		}
		log.G(ctx).Debug("the container goes on")
	}
	if times.Freeze = released.FreezeSeconds; !t.LeaveRunning || lost != nil {
		times.Freeze = time.Since(dumped.Frozen).Seconds()
	}
	intake.Hurry()
	d.hurry()
	if err := recordLock(&sub.config, images); err != nil {
		return desc, nil, err
	}
	if err := recordGPUs(t.Config.GPU, &sub.config, images, dumped); err != nil {
		return desc, nil, err
	}
	if err := t.checkEngine(sub.config.GPU); err != nil {
		return desc, nil, err
	}
	var onGPU *GPUSeconds
	if sub.config.GPU != nil {
		onGPU = &GPUSeconds{Lock: dumped.LockSeconds, Save: dumped.SaveSeconds, Load: released.LoadSeconds}
	}
	if dumped.Devices && device == nil {
		if device, err = d.arrived(ctx, h); err != nil {
			return desc, nil, err
		}
	}
	if device != nil {
		t.Ended("devices")
		sub.config.GPU.Seconds.Devices = d.took.Seconds()
		onGPU.Devices, onGPU.Bytes = d.took.Seconds(), sub.config.GPU.HandedOver()
		onGPU.Precopy, onGPU.Same = d.precopy.took.Seconds(), d.precopy.same
	}
	sub.config.Created, sub.config.Timings = dumped.Frozen.UTC(), times
	packing := time.Now()
	desc, err = image.Pack(ctx, t.sender.watch(t.store), image.PackSource{
		Images: images, Memory: intake, Device: device, RootFS: files, Config: sub.config, Subject: daemon.BaseReferrer(sub.base, sub.config.Container.Image, t.name),
	}, t.packOptions())
	if err != nil {
		return desc, nil, err
	}
	log.G(ctx).Debug("the snapshot is packed")
	pack := time.Since(packing).Seconds()
	if !t.LeaveRunning {
		// The container is about to end, and all that is left of it has to be sound.
		if err := image.VerifyShared(ctx, t.store, desc, t.Progress); err != nil {
			return desc, nil, fmt.Errorf("%w (--parent none shares nothing)", err)
		}
	}
	snapshot, err := image.Open(ctx, t.store, desc)
	if err != nil {
		return desc, nil, err
	}
	if err := h.settle(); err != nil {
		if err = sub.lost(err); !isLost(err) {
			return desc, nil, d.explain(ctx, err)
		}
		lost = err
	}
	var verified *Verified
	if lost == nil { // else the snapshot is all that there is
		if verified, err = t.try(ctx, sub, desc); err != nil {
			return desc, nil, err
		}
	}
	r := &Result{
		Reference: t.name, Digest: desc.Digest.String(), Container: sub.info.ID, Size: snapshot.Size(), Memory: snapshot.Config.Memory.Total,
		Freeze: times.Freeze, Dump: times.Dump, RootFS: times.RootFS, Pack: pack, GPU: onGPU,
		Shared: snapshot.Shared(), Verify: verified, asked: t.Options,
	}
	if p := snapshot.Config.Parent; p != nil {
		r.Parent = p.Digest.String()
	}
	if t.Step != nil { // the group's index refers to what the registry has
		if err := errors.Join(t.sign(ctx, desc, r), t.push(ctx, desc, r)); err != nil {
			return desc, nil, err
		}
		if _, err := t.pass(ctx, worker.Reached{Step: worker.Complete, Digest: desc.Digest, Manifest: desc.Size}); err != nil {
			return desc, nil, err
		}
	}
	if lost, err = t.publish(ctx, h, sub, desc, lost); err != nil {
		return desc, nil, err
	}
	r.Running, r.lost = t.LeaveRunning && lost == nil, lost
	return desc, r, nil
}

// keepLogs copies what CRIU has left in its work directory to where it is wanted.
func (t *taking) keepLogs(work string) {
	if t.Logs == "" {
		return
	}
	for _, name := range []string{"dump.log", "stats-dump"} {
		data, err := os.ReadFile(filepath.Join(work, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(t.Logs, name), data, 0o600)
		}
		if err != nil {
			t.Warn("keep CRIU's %s: %v", name, err)
		}
	}
}

// publish gives the snapshot its name, and ends the container unless it goes on. lost, before and after, is why the container was lost although there is a
// snapshot. With an error there is none of this name.
func (t *taking) publish(ctx context.Context, h *heldContainer, sub *candidate, desc ocispec.Descriptor, lost error) (_ error, err error) {
	name := t.local(desc)
	before, unknown := t.store.Resolve(ctx, name)
	if err := t.store.Tag(ctx, desc, name); err != nil {
		return nil, err
	}
	if !t.LeaveRunning {
		if lost, err = t.end(ctx, h, sub); err != nil {
			// The container runs on, so there shall be no snapshot that says it ended.
			again := context.WithoutCancel(ctx)
			if unknown == nil {
				return nil, errors.Join(err, t.store.Tag(again, before, name))
			}
			return nil, errors.Join(err, t.store.Untag(again, name))
		}
	}
	log.G(ctx).Debug("the snapshot has its name, and the container ended unless it goes on")
	// It is done: an interrupt that comes now does not change that.
	if t.LeaveRunning && lost == nil {
		if err := remember(ctx, t.client, sub.info.ID, desc.Digest); err != nil {
			t.Warn("%v; the next snapshot may share less", err)
		}
	}
	return lost, nil
}

// end kills the container, unless it was interrupted. An error: it runs on, which has been looked at. The snapshot that there is must be
// kept in all other cases, also where the container was lost in another way than it should have been.
func (t *taking) end(ctx context.Context, h *heldContainer, sub *candidate) (lost, err error) {
	err = context.Cause(ctx)
	if err != nil {
		err = errors.Join(err, h.giveUp())
	} else {
		var released checkpoint.Released
		if released, err = h.release(ctx, checkpoint.Kill); released.Killed {
			if err != nil {
				t.Warn("%s was ended, and containerd may not know it yet: %v", sub.name, err)
			}
			return nil, nil
		}
		err = errors.Join(err, h.giveUp())
	}
	if err == nil {
		err = fmt.Errorf("end %s: its shim has let it run on: %w", sub.name, errdefs.ErrAborted)
	}
	switch lost = sub.lost(err); {
	case !isLost(lost):
		return nil, lost
	case h.shim.Silent() && sub.process.look() == ended: // it has not run meanwhile
		t.Warn("%s has ended, though not all that should have ended it was there: %v", sub.name, err)
		return nil, nil
	}
	return lost, nil
}

// signAndPush does what is to be done with a snapshot that is safe here.
func (t *taking) signAndPush(ctx context.Context, desc ocispec.Descriptor, r *Result) error {
	if err := t.sign(ctx, desc, r); err != nil {
		return r.kept("sign it with cryo sign "+t.Ref+" --key "+t.KeyFile, err)
	}
	if err := t.push(ctx, desc, r); err != nil {
		return r.kept("push it with cryo push "+t.Ref, err)
	}
	return nil
}

// sign signs a snapshot, if there is a key.
func (t *taking) sign(ctx context.Context, desc ocispec.Descriptor, r *Result) error {
	if t.Key == nil {
		return nil
	}
	if _, err := t.store.Sign(ctx, desc, t.Key); err != nil {
		return fmt.Errorf("sign %s: %w", t.Ref, err)
	}
	r.Signed = t.Key.Public.Fingerprint()
	return nil
}

// push sends what the registry lacks of a snapshot, and names it there, if it is to be sent.
func (t *taking) push(ctx context.Context, desc ocispec.Descriptor, r *Result) (err error) {
	if t.Push == nil {
		return nil
	}
	if r.Push, err = t.sender.finish(ctx, desc); err != nil {
		return err
	}
	r.Pushed, r.Named = true, namedBy(t.sender.pusher, t.Ref, t.Warn)
	if r.NoImage != "" {
		r.Warnings = append(r.Warnings, "no image could be made of the snapshot: "+r.NoImage)
	}
	log.G(ctx).Debug("the snapshot is pushed")
	return nil
}

// local is what the store calls the snapshot. One that it does not keep takes no name from another, nor from one that is taken at the same time.
func (t *taking) local(desc ocispec.Descriptor) string {
	if !t.Discard {
		return t.name
	}
	return t.name[:strings.LastIndexByte(t.name, ':')] + "@" + desc.Digest.String()
}

// discard removes the snapshot from the local store.
func (t *taking) discard(ctx context.Context, desc ocispec.Descriptor) {
	if _, err := t.store.Remove(context.WithoutCancel(ctx), t.local(desc)); err != nil {
		t.Warn("%v", err)
	}
}

// Remove removes the container, which has ended, and its root file system. by is a command that does it, which the hint of an error tells.
func (r *Result) Remove(ctx context.Context, client *containerd.Client, by string) error {
	ctx = context.WithoutCancel(ctx)
	container, err := client.LoadContainer(ctx, r.Container)
	if err == nil {
		err = restore.RemoveTask(ctx, container)
	}
	if err == nil {
		err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	}
	if restore.IgnoreNotFound(err) != nil {
		return r.kept("remove the container with "+by, fmt.Errorf("remove %s: %w", r.Container, err))
	}
	r.Removed = true
	return nil
}
