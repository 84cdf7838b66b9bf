package shim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/confinement"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/runtime/setns"
	"github.com/cryo-project/cryo/runtime/tmpfs"
)

// notRestored says why a snapshot could not be made to run: what runc said, or the driver of GPUs. Its kind is Aborted.
func notRestored(id string, err error) error {
	return failure.New(errdefs.ErrAborted, "", "restore %s: %w", id, err)
}

// byCRIU is notRestored where CRIU has given the reason. Its kind is DataLoss where that is a rule of ours which refused the snapshot while CRIU was at it.
func byCRIU(id, reason string) error {
	kind := error(errdefs.ErrAborted)
	if strings.Contains(reason, tmpfs.Rule) {
		kind = errdefs.ErrDataLoss
	}
	return failure.New(kind, criu.Remedy(reason), "restore %s: CRIU: %s", id, reason)
}

// restoreLog is CRIU's log of a restore, in its work directory.
const restoreLog = "restore.log"

// Start starts a container or an exec; a container that was created from a snapshot is restored.
func (s *service) Start(ctx context.Context, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	c := s.container(r.ID)
	if c == nil || r.ExecID != "" || c.restore == "" && !c.starting.underway.Load() {
		return s.startPlain(ctx, c, r)
	}
	if !c.starting.underway.CompareAndSwap(false, true) {
		return nil, errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "restore %s: it is being restored already", r.ID)
	}
	defer c.starting.decide()
	defer c.starting.underway.Store(false)
	if c.ran.Load() {
		return nil, errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "restore %s: it has been restored already", r.ID)
	}
	ctx = context.WithoutCancel(ctx) // containerd may be restarted meanwhile, and who has asked asks again
	restore := s.restore
	if c.gpus.record != nil {
		restore = s.restoreWithGPUs
	}
	// What a start afresh writes comes after what was written before, and whoever reads meets no end between them.
	defer holdOpen(c.request.Stdin, c.request.Stdout, c.request.Stderr)()
	if c.asksForStart() { // subscribers hear of one task, whatever becomes of the restore
		c.exited = s.deletions.hold(r.ID)
	}
	c.restoring.Store(true)
	answer, err := restore(ctx, c, r)
	c.restoring.Store(false)
	if err != nil {
		if left := c.ipc.Undo(runc.Ended); left != nil {
			log.G(ctx).WithError(left).WithField("id", r.ID).Warn("remove what a failed restore has made in the pod's IPC namespace")
		}
		if answer, err = s.startAfresh(ctx, c, r, c.process.Because(native(err))); err != nil {
			go s.deletions.release(r.ID)
			c.tell(ctx, err)
		}
		return answer, reply(err)
	}
	go s.deletions.release(r.ID)
	c.runs(ctx)
	go s.tellRestored(ctx, c)
	return answer, nil
}

// startPlain waits for a dump to end, but does not keep one from beginning: starting an exec whose client has died takes
// for ever, since nobody opens the other ends of its pipes.
func (s *service) startPlain(ctx context.Context, c *container, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	if c != nil {
		if err := c.gate.enter(ctx); err != nil {
			return nil, reply(err)
		}
		c.gate.leave()
	}
	return s.TTRPCTaskService.Start(ctx, r)
}

// restoreWithGPUs keeps all else off the container while its GPUs are loaded: a frozen process cannot be given its own back.
func (s *service) restoreWithGPUs(ctx context.Context, c *container, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	ctx, open, ok, err := c.gate.close(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &checkpoint.BusyError{ID: r.ID}
	}
	defer open()
	defer c.endsWhenKilled(ctx)()
	gpus, err := s.beginGPUs(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	c.fits = gpus.Fits
	loaded := false
	defer func() {
		if !loaded {
			gpus.Close()
			return
		}
		go gpus.Close() // it runs, and whoever brought its memory takes a tenth of a second to end
	}()
	answer, err := s.restore(ctx, c, r)
	if ctx.Err() != nil && err != nil {
		return nil, err
	}
	// CRIU is let end first: one that is killed leaves mounts. What it says means little where the GPUs do not fit.
	if misfit := gpus.Fits(); misfit != nil {
		failed := fmt.Errorf("restore %s: %w", r.ID, misfit)
		if err == nil {
			failed = errors.Join(failed, s.endRestored(ctx, c))
		}
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	ctx, stop := whileRuns(ctx, int(answer.Pid))
	defer stop()
	// The driver touches what it moves page by page, and waits each time.
	loading, stop := gpus.Loading(ctx)
	err = s.awaitFilled(loading, c, nil)
	stop()
	if err != nil {
		return nil, errors.Join(notRestored(r.ID, err), s.endRestored(ctx, c))
	}
	if err := s.loadGPUs(ctx, c, gpus, int(answer.Pid)); err != nil {
		return nil, errors.Join(notRestored(r.ID, err), s.endRestored(ctx, c))
	}
	loaded = true
	return answer, nil
}

// whileRuns gives a context that ends when a process has ended: memory of GPUs may be waited for as long as a registry is away.
func whileRuns(ctx context.Context, pid int) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if runc.Ended(pid) {
				cancel(fmt.Errorf("process %d has ended meanwhile: %w", pid, errdefs.ErrAborted))
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (s *service) restore(ctx context.Context, c *container, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	if err := reviewFiles(ctx, c); err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	if c.prepared.Lazy && !s.config.Restore.Lazy {
		return nil, failure.New(errdefs.ErrFailedPrecondition,
			"use cryo restore --eager, or give containerd and cryo the same configuration (restore.lazy in /etc/cryo/config.toml, CRYO_CONFIG)",
			"restore %s: memory shall be filled in later, which the shim's configuration does not allow", r.ID)
	}
	criuOptions, err := s.writeRestoreOptions(c)
	if err != nil {
		return nil, err
	}
	defer settle(ctx, c, criuOptions)
	if err := c.runtime.Foreign(); err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	if c.runtime.Known(ctx) {
		return nil, fmt.Errorf("restore %s: runc has a container of this name already: %w", r.ID, errdefs.ErrAlreadyExists)
	}
	if err := c.joinNamespaces(); err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	done, err := c.bundle.begin(restoreFile, c.work)
	if err != nil {
		return nil, err
	}
	clean := true
	defer func() {
		if clean { // else the record is what delete goes by
			done()
		}
	}()
	relay, err := confinement.Listen(c.bundle.dir, c.compare)
	if err != nil {
		return nil, notRestored(r.ID, err)
	}
	defer relay.Close()
	if err := c.keepOutput(); err != nil {
		return nil, notRestored(r.ID, err)
	}
	filling, err := s.beginFilling(ctx, c)
	if err != nil {
		return nil, notRestored(r.ID, err)
	}
	over := make(chan struct{})
	go c.runtime.Restoring(c.work).EndOrphans(over, func() bool { return criu.Restored(filepath.Join(c.work, restoreLog)) })
	stalled := s.endStalled(c, filling, over)
	// A restore that is broken off leaves half of a process tree. It takes seconds: let it end, then do as was asked.
	// runc mounts sources in the root file system for a moment, with all below them, and unmounts them: where the host's / is shared, as systemd makes it, the host would lose
	// what it has mounted below a source.
	var answer *taskAPI.StartResponse
	err = setns.Apart(func() (err error) {
		answer, err = s.TTRPCTaskService.Start(context.WithoutCancel(ctx), r)
		return err
	})
	close(over)
	hung := stalled()
	if err != nil {
		left := c.endRestore(ctx)
		clean = left == nil
		if hung != nil {
			_ = filling.Cause() // what it says comes of it
			return nil, errors.Join(hung, left)
		}
		failed := notRestored(r.ID, native(err))
		if reason := criu.Reason(filepath.Join(c.work, restoreLog)); reason != "" {
			failed = byCRIU(r.ID, reason)
		}
		if cause := filling.Cause(); cause != nil {
			failed = notRestored(r.ID, cause)
		}
		switch cause := relay.Close(); {
		case errors.Is(cause, errdefs.ErrPermissionDenied):
			return nil, errors.Join(fmt.Errorf("restore %s: %w", r.ID, cause), left)
		case cause != nil:
			failed = notRestored(r.ID, cause)
		}
		return nil, errors.Join(failed, left)
	}
	c.ran.Store(true)
	if hung != nil { // it was through when it was ended
		hung = errors.Join(hung, s.endRestored(ctx, c))
		_ = filling.Cause()
		return nil, hung
	}
	if err := filling.Restored(context.WithoutCancel(ctx)); err != nil {
		err = errors.Join(notRestored(r.ID, err), s.endRestored(ctx, c))
		filling.End()
		return nil, err
	}
	if err := s.adopt(c, int(answer.Pid)); err != nil {
		log.G(ctx).WithError(err).WithField("id", r.ID).Error("find the cgroup of a restored container")
	}
	warn(ctx, "remove the directory a container was restored from", removeOwned(c.bundle.dir))
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), s.endRestored(ctx, c))
	}
	return answer, nil
}

// joinNamespaces has CRIU leave alone what is not the container's in namespaces that it joins, which are its pod's.
func (c *container) joinNamespaces() error {
	spec, err := c.bundle.spec()
	if err != nil {
		return err
	}
	if path, _ := setns.In(spec, specs.UTSNamespace); path != "" {
		if err := criu.JoinUTS(c.restore, path); err != nil {
			return err
		}
	}
	if path, _ := setns.In(spec, specs.IPCNamespace); path != "" {
		c.ipc, err = criu.JoinIPC(c.restore, path)
	}
	return err
}

// endRestore leaves nothing of a restore that has failed. runc does so itself, unless it was killed: then it has left CRIU, what CRIU has made, its own
// directory for the container, and the cgroup. Where that directory has a state, runc's own delete goes by it.
func (c *container) endRestore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if c.runtime.Foreign() != nil { // it has come since, and is why runc has failed
		return errors.Join(runc.EndDump(c.work), unmountBelow(c.work))
	}
	if c.runtime.Known(ctx) {
		_ = c.runtime.Kill(ctx) // it may have ended
	}
	err := runc.EndDump(c.work)
	for {
		left := errors.Join(removeCgroup(c.bundle.dir), c.runtime.SweepRestore(), unmountBelow(c.work))
		if left == nil {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond): // killed processes take a moment to go
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("clean up after the restore: %w", left))
		}
	}
}

// unmountBelow unmounts what CRIU, where it was killed, has left mounted in its work directory: the cgroups of version 1. Source: CRIU 4.2, criu/cgroup.c,
// prepare_cgroup_sfd.
func unmountBelow(work string) error {
	if work == "" {
		return nil
	}
	if err := mount.UnmountRecursive(work, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount what is below %s: %w", work, err)
	}
	return nil
}

// writeRestoreOptions repeats the choices of the dump.
func (s *service) writeRestoreOptions(c *container) (criu.Options, error) {
	record, err := criu.ReadRecord(c.restore)
	if err != nil {
		return criu.Options{}, err
	}
	o, err := s.criuOptions(c)
	if err != nil {
		return criu.Options{}, err
	}
	o.TCPEstablished, o.FileLocks, o.ExternalSockets = record.TCPEstablished, record.FileLocks, record.ExternalSockets
	o.LazyPages = c.prepared.Lazy
	return o, o.WriteFile(c.bundle.criuConfig())
}
