package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/runtime/pageserver"
	"github.com/cryo-project/cryo/shim/restore"
)

// subject is a running container of which a snapshot is taken, and all that can be known of it before it is frozen.
type subject struct {
	name    string // as the user calls it
	info    containers.Container
	process firstProcess
	asked   bool // the shim, for a checkpoint
	gpus    bool // it has device nodes of GPUs
	config  image.Config
	base    ocispec.Descriptor
}

// take takes a snapshot and names it. The container afterwards runs on or has ended, as f says. If there is an error, there is no snapshot,
// and the container is as it was or the error is a [lostError]. A container that was lost although there is a snapshot is in the result.
func (a *app) take(ctx context.Context, client *containerd.Client, s *store.Store, f checkpointFlags) (ocispec.Descriptor, checkpointResult, error) {
	var none ocispec.Descriptor
	allowed := make(chan error, 1)
	go func() { allowed <- f.sender.allowed(ctx, f.container) }()
	sub, err := a.examine(ctx, client, f)
	if err != nil {
		return none, checkpointResult{}, err
	}
	if f.preDump > 0 {
		if err := a.checkPreDump(ctx, sub); err != nil {
			return none, checkpointResult{}, err
		}
	}
	if f.segmentBytes == 0 {
		f.segmentBytes = segmentSize(sub.gpus, resident(sub.process.pid))
	}
	a.stages.done(ctx, "the container was examined")
	if err := <-allowed; err != nil {
		return none, checkpointResult{}, err
	}
	if f.push {
		a.stages.done(ctx, "the registry lets us push")
	}
	warnings := []string{}
	if beside := sub.process.beside(); len(beside) > 0 {
		warnings = append(warnings, "the snapshot will not have what exec has started in "+sub.name+": "+strings.Join(beside, ", "))
		a.warn("%s", warnings[0])
	}
	op, err := s.Begin(ctx)
	if err != nil {
		return none, checkpointResult{}, err
	}
	desc, result, err := a.takeInto(ctx, client, s, f, sub)
	if err != nil {
		err = sub.lost(err)
		// What was written of the snapshot goes.
		if abandoned := op.Abandon(); abandoned != nil {
			err = errors.Join(err, abandoned)
		}
		return none, checkpointResult{}, &failedError{op: "checkpoint", name: f.container, err: err}
	}
	result.Warnings = warnings
	return desc, result, op.Close()
}

// takeInto does it in a working directory, which is gone afterwards.
func (a *app) takeInto(ctx context.Context, client *containerd.Client, s *store.Store, f checkpointFlags, sub *subject) (ocispec.Descriptor, checkpointResult, error) {
	var none ocispec.Descriptor
	work, err := s.Work(ctx)
	if err != nil {
		return none, checkpointResult{}, err
	}
	defer closing(ctx, "work", work)
	if err := mountIn(work.Dir); err != nil {
		return none, checkpointResult{}, err
	}
	if err := restore.RemoveAbandoned(ctx, client, work.Dir); err != nil {
		a.warn("%v", err)
	}
	if f.opened, err = a.parentOf(ctx, s, f, sub.info.Labels); err != nil {
		return none, checkpointResult{}, err
	}
	images, criuWork := filepath.Join(work.Dir, "images"), filepath.Join(work.Dir, "criu")
	attempt := func(stream bool) (ocispec.Descriptor, checkpointResult, error) {
		for _, dir := range []string{images, criuWork} {
			if err := os.RemoveAll(dir); err != nil {
				return none, checkpointResult{}, fmt.Errorf("clear a working directory: %w", err)
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				return none, checkpointResult{}, fmt.Errorf("make a working directory: %w", err)
			}
		}
		return a.freeze(ctx, client, s, f, sub, images, criuWork, work.Dir, stream)
	}
	desc, result, err := attempt(true)
	var unknown *pageserver.ProtocolError
	if errors.As(err, &unknown) {
		a.warn("%v; taking it again by way of files", err)
		f.preDump = 0
		desc, result, err = attempt(false)
	}
	var told *checkpoint.ToldError
	if errors.Is(err, unix.ENOSPC) || errors.As(err, &told) && errdefs.IsResourceExhausted(told) {
		err = &restore.FullError{Dir: s.Root(), Err: err}
	}
	return desc, result, err
}

// examine finds the container and refuses what would fail later.
func (a *app) examine(ctx context.Context, client *containerd.Client, f checkpointFlags) (*subject, error) {
	container, err := a.find(ctx, client, f.container)
	if err != nil {
		return nil, err
	}
	info, err := container.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", f.container, err)
	}
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil, &notRunningError{name: f.container, status: "stopped"}
	}
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", f.container, err)
	}
	status, err := task.Status(ctx)
	if errdefs.IsNotFound(err) { // it has ended meanwhile
		return nil, &notRunningError{name: f.container, status: "stopped"}
	}
	if err != nil {
		return nil, fmt.Errorf("examine %s: %w", f.container, err)
	}
	if status.Status != containerd.Running && status.Status != containerd.Paused {
		return nil, &notRunningError{name: f.container, status: string(status.Status)}
	}
	process, err := identify(task.Pid(), status.Status == containerd.Paused)
	if err != nil {
		return nil, &lostError{container: f.container, err: fmt.Errorf("checkpoint %s: %s: %w", f.container, ended, err)}
	}
	if !ourShim(info.Runtime.Name, task.Pid()) {
		return nil, &runtimeError{name: f.container, runtime: info.Runtime.Name}
	}
	if other := madeBy(info.Labels); f.remove && other != "" {
		return nil, &usageError{command: "cryo checkpoint", problem: fmt.Sprintf("--rm removes no container that %s made: have it removed by that", other)}
	}
	if info.SnapshotKey == "" {
		return nil, fmt.Errorf("checkpoint %s: its rootfs is a plain directory (ctr run --rootfs), not a snapshot of an image: %w", f.container, errdefs.ErrNotImplemented)
	}
	var spec specs.Spec
	if err := json.Unmarshal(info.Spec.GetValue(), &spec); err != nil {
		return nil, fmt.Errorf("read the runtime specification of %s: %w", f.container, err)
	}
	facts, err := a.facts(ctx, neededFeatures(&spec))
	if err != nil {
		return nil, err
	}
	base, err := baseOf(ctx, client, info)
	if err != nil {
		return nil, err
	}
	h := image.Host(facts)
	h.Features = neededFeatures(&spec)
	return &subject{name: f.container, info: info, process: process, base: base.Target, gpus: cdi.HasNVIDIA(&spec), config: image.Config{
		Version: image.ConfigVersion,
		Container: image.Container{
			ID: info.ID, Namespace: a.namespace, Runtime: info.Runtime.Name, Snapshotter: info.Snapshotter, Labels: info.Labels,
			Image: base.Name, ImageDigest: base.Target.Digest,
		},
		Spec: json.RawMessage(info.Spec.GetValue()),
		Host: h,
		Process: image.Options{
			TCPEstablished: f.tcp, FileLocks: f.locks, ExternalUnixSockets: f.externalUnix,
			Terminal: spec.Process != nil && spec.Process.Terminal,
		},
	}}, nil
}

// patience is how long the container may take to be as before, after a checkpoint that has failed.
func (s *subject) patience() time.Duration {
	if s.gpus {
		return gpuUndoTime
	}
	return undoTime
}

// freeze does what happens while the container stands still, and what comes after.
func (a *app) freeze(ctx context.Context, client *containerd.Client, s *store.Store, f checkpointFlags, sub *subject, images, criuWork, work string, stream bool) (desc ocispec.Descriptor, result checkpointResult, err error) {
	changed, err := changesOf(ctx, client, sub.info)
	if err != nil {
		return desc, result, err
	}
	shim, err := checkpoint.Listen(criuWork)
	if err != nil {
		return desc, result, err
	}
	shim.Options = checkpoint.Options{GPUTimeout: f.gpuTimeout.Seconds(), Force: f.force, Pages: stream, PreDump: f.preDump, Devices: f.gpuEngine != image.DriverEngine, KeeperOnly: f.gpuEngine == image.KeeperEngine, LeaveRunning: f.leaveRunning}
	m, err := a.takeIn(ctx, s, shim, images, work, f)
	if err != nil {
		return desc, result, errors.Join(err, shim.Close())
	}
	defer m.close()
	d := a.takeInDevices(ctx, s, shim, images, work, f)
	defer d.close()
	h, dumped, err := hold(ctx, client, shim, sub, images, criuWork, f)
	if err != nil {
		return desc, result, d.explain(ctx, m.explain(ctx, err))
	}
	defer func() {
		if err == nil {
			err = h.close(ctx)
		} else {
			err = errors.Join(err, h.giveUp(ctx))
		}
	}()
	intake, err := m.arrived()
	if err != nil {
		return desc, result, err
	}
	a.progress.over("dump")
	a.stages.done(ctx, "the container is frozen and dumped")
	d.dumped()
	start := time.Now()
	files, err := changed.capture(ctx, work)
	if err != nil {
		return desc, result, err
	}
	a.stages.done(ctx, "changed files are copied")
	t := image.Timings{Dump: dumped.DumpSeconds, RootFS: time.Since(start).Seconds()}
	var device *image.DeviceIntake
	if dumped.Devices && (!dumped.DevicesPending || !f.leaveRunning) {
		if device, err = d.arrived(ctx, h); err != nil {
			return desc, result, err
		}
	}
	var released checkpoint.Released
	if f.leaveRunning {
		if released, err = h.resume(ctx); err != nil {
			// What has been dumped is all that there is of a container whose shim has died. A shim that lives has removed it.
			if err = sub.lost(err); !isLost(err) || !h.silent {
				return desc, result, err
			}
			lost := err
			result.lost = lost
			defer func() {
				if err != nil {
					err = lost
				}
			}()
		}
		t.Freeze = released.FreezeSeconds
		if result.lost != nil {
			t.Freeze = time.Since(dumped.Frozen).Seconds()
		}
	} else {
		t.Freeze = time.Since(dumped.Frozen).Seconds()
	}
	if f.leaveRunning {
		a.stages.done(ctx, "the container goes on")
	}
	f.sender.release()
	intake.Hurry()
	d.hurry()
	if err := recordLock(&sub.config, images); err != nil {
		return desc, result, err
	}
	settings, err := a.config()
	if err != nil {
		return desc, result, err
	}
	if err := recordGPUs(settings.GPU, &sub.config, images, dumped); err != nil {
		return desc, result, err
	}
	if err := f.checkEngine(sub.config.GPU); err != nil {
		return desc, result, err
	}
	var onGPU *gpuSeconds
	if sub.config.GPU != nil {
		onGPU = &gpuSeconds{Lock: dumped.LockSeconds, Save: dumped.SaveSeconds, Load: released.LoadSeconds}
	}
	if dumped.Devices && device == nil {
		if device, err = d.arrived(ctx, h); err == nil {
			err = h.settle()
		}
		if err != nil {
			return desc, result, err
		}
	}
	if device != nil {
		a.progress.over("devices")
		sub.config.GPU.Seconds.Devices = d.took.Seconds()
		onGPU.Devices, onGPU.Bytes = d.took.Seconds(), handedOver(sub.config.GPU)
	}
	sub.config.Created, sub.config.Timings = dumped.Frozen.UTC(), t
	packing := time.Now()
	if err := m.complete(ctx, images); err != nil {
		return desc, result, err
	}
	desc, err = image.Pack(ctx, f.sender.watch(s), image.PackSource{Images: images, Memory: intake, Device: device, RootFS: files, Config: sub.config, Subject: referrerOf(sub.base, sub.config.Container.Image, f.normalized)},
		f.packOptions(a))
	if err != nil {
		return desc, result, err
	}
	a.stages.done(ctx, "the snapshot is packed")
	pack := time.Since(packing).Seconds()
	if !f.leaveRunning {
		// The container is about to end, and all that is left of it has to be sound.
		if err := image.VerifyShared(ctx, s, desc, a.report()); err != nil {
			return desc, result, fmt.Errorf("%w (--parent none shares nothing)", err)
		}
	}
	snapshot, err := image.Open(ctx, s, desc)
	if err != nil {
		return desc, result, err
	}
	before, hadBefore := s.Resolve(ctx, f.normalized)
	if err := s.Tag(ctx, desc, f.normalized); err != nil {
		return desc, result, err
	}
	if !f.leaveRunning {
		if result.lost, err = a.end(ctx, h, sub); err != nil {
			// The container runs on, so there shall be no snapshot that says it ended.
			again := context.WithoutCancel(ctx)
			if hadBefore == nil {
				err = errors.Join(err, s.Tag(again, before, f.normalized))
			} else {
				err = errors.Join(err, s.Untag(again, f.normalized))
			}
			return desc, result, err
		}
	}
	a.stages.done(ctx, "the snapshot has its name, and the container ended unless it goes on")
	// It is done: an interrupt that comes now does not change that.
	if f.leaveRunning && result.lost == nil {
		if err := remember(ctx, client, sub.info.ID, desc.Digest); err != nil {
			a.warn("%v; the next snapshot may share less", err)
		}
	}
	result = checkpointResult{
		madeBy: madeBy(sub.info.Labels), lost: result.lost,
		Reference: f.normalized, Digest: desc.Digest.String(), Container: sub.info.ID, Size: total(snapshot), Memory: snapshot.Config.Memory.Total,
		Freeze: t.Freeze, Dump: t.Dump, RootFS: t.RootFS, Pack: pack, GPU: onGPU, Running: f.leaveRunning && result.lost == nil,
		Shared: shared(snapshot), Rounds: m.rounds.results(),
	}
	if n := len(result.Rounds); n < f.preDump {
		a.warn("%d of %d rounds were taken before the freeze: what is paused has none", n, f.preDump)
	}
	if p := snapshot.Config.Parent; p != nil {
		result.Parent = p.Digest.String()
	}
	return desc, result, nil
}

// end kills the container, unless somebody has interrupted. An error: it runs on, which has been looked at. The snapshot that there is must be
// kept in all other cases, also where the container was lost in another way than it should have been.
func (a *app) end(ctx context.Context, h *held, sub *subject) (lost, err error) {
	err = context.Cause(ctx)
	if err != nil {
		err = errors.Join(err, h.giveUp(ctx))
	} else {
		var released checkpoint.Released
		if released, err = h.kill(ctx); released.Killed {
			if err != nil {
				a.warn("%s was ended, and containerd may not know it yet: %v", sub.name, err)
			}
			return nil, nil
		}
		_ = h.client.Close() // no order is on its way after that
	}
	if err == nil {
		err = fmt.Errorf("end %s: its shim has let it run on: %w", sub.name, errdefs.ErrAborted)
	}
	switch lost = sub.lost(err); {
	case !isLost(lost):
		return nil, lost
	case h.silent && sub.process.look() == ended: // it has not run meanwhile
		a.warn("%s has ended, though not all that should have ended it was there: %v", sub.name, err)
		return nil, nil
	}
	return lost, nil
}
