package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/runtime/runc"
)

// notRestored returns the error of a snapshot that could not be made to run. err is what runc, the driver of GPUs, or the process that fills in memory has reported. The
// error has the kind of err where that is the kind of a cause: the snapshot is damaged, does not fit, may not, finds no room, took too long, or a process has died. Else its kind is Aborted.
func notRestored(id string, err error) error {
	kinds := []error{errdefs.ErrDataLoss, failure.ErrMisfit, errdefs.ErrPermissionDenied, errdefs.ErrResourceExhausted, context.DeadlineExceeded, errdefs.ErrUnavailable, errdefs.ErrAborted}
	kind := slices.IndexFunc(kinds, func(k error) bool { return errors.Is(err, k) })
	if kind < 0 {
		kind = len(kinds) - 1
	}
	return failure.New(kinds[kind], "", "restore %s: %w", id, err)
}

// byCRIU is notRestored where CRIU has given the reason. Its kind is DataLoss where that is a rule of ours which refused the snapshot while CRIU was at it.
func byCRIU(id, reason string) error {
	kind := error(errdefs.ErrAborted)
	if strings.Contains(reason, guard.TmpfsRule) {
		kind = errdefs.ErrDataLoss
	}
	_, hint := criu.Remedy(reason)
	return failure.New(kind, hint, "restore %s: CRIU: %s", id, reason)
}

// restoreLog is CRIU's log of a restore, in its work directory.
const restoreLog = "restore.log"

// Start starts a container or an exec; a container that was created from a snapshot is restored.
func (s *service) Start(ctx context.Context, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	c := s.container(r.ID)
	if c == nil || r.ExecID != "" || c.restore == "" {
		return s.startPlain(ctx, c, r)
	}
	in, err := c.life.admit(context.WithoutCancel(ctx), toRestore, r.ID) // containerd may be restarted meanwhile, and its client asks again
	if err != nil {
		return nil, reply(err)
	}
	criu := c.runtime.Restoring(c.work)
	end := func() {
		if init := c.restored.Load(); init != 0 {
			c.silence(int(init))
		}
		criu.End()
	}
	in.stops(end) // the stock service would only wait
	next := ended
	defer func() {
		in.over(next)
		if next == filling {
			go c.isFilled()
		}
	}()
	ctx = in.ctx
	restored := make(chan struct{})
	go func() {
		select {
		case <-c.process.Ended(): // it has died, or its command has left: the container will not run
		case <-restored:
		}
		select {
		case <-restored:
		default:
			end()
		}
	}()
	restore := s.restore
	if c.gpus.record != nil {
		restore = s.restoreWithGPUs
	}
	defer holdOpen(c.request.Stdout, c.request.Stderr)()
	defer holdInput(c.request.Stdin)()
	answer, err := restore(in, c, r)
	close(restored)
	switch {
	case err == nil && c.isPooled():
		err = s.stand(ctx, c, int(answer.Pid))
	case err == nil:
		err = s.runAfterRestore(ctx, c, c.process.Ended())
	}
	if err != nil {
		if left := c.ipc.Undo(runc.Ended); left != nil {
			log.G(ctx).WithError(left).WithField("id", r.ID).Warn("remove what a failed restore has made in the pod's IPC namespace")
		}
		err = c.process.Because(native(err))
		c.process.End() // what it has changed of the root file system, which is mounted, is undone when the task is deleted
		return nil, reply(err)
	}
	if c.isPooled() {
		next = held
		c.runs(ctx)
		return answer, nil
	}
	next = filling
	c.runs(ctx)
	go s.tellRestored(context.WithoutCancel(ctx), c)
	go c.probeAgain(context.WithoutCancel(ctx))
	return answer, nil
}

// startPlain waits until the container's phase lets it pass, but does not keep a checkpoint from beginning: starting an exec whose client has died takes for ever, since no process
// opens the other ends of its pipes.
func (s *service) startPlain(ctx context.Context, c *container, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	if c != nil {
		in, err := c.life.admit(ctx, toStart, r.ID)
		if err != nil {
			return nil, reply(err)
		}
		in.leave()
	}
	answer, err := s.TTRPCTaskService.Start(ctx, r)
	if err == nil && c != nil && r.ExecID == "" {
		c.life.move(created, running)
		if c.bundle.whenReady > 0 {
			go s.takeWhenReady(context.WithoutCancel(ctx), c)
		}
	}
	return answer, err
}

// restoreWithGPUs restores a container with GPUs, which stands still until they are loaded.
func (s *service) restoreWithGPUs(in *admission, c *container, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	ctx := in.ctx
	defer c.endsWhenKilled(ctx)()
	gpus, err := s.beginGPUs(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	c.fits, c.pairs = gpus.Fits, func() []device.DevicePair { return gpus.Loaded(0).GPUs }
	loaded := false
	defer func() {
		if !loaded {
			gpus.Close()
			return
		}
		go gpus.Close() // it runs, and the process that brought its memory takes a tenth of a second to end
	}()
	answer, err := s.restore(in, c, r)
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
	loadingGPUs, stop := gpus.Loading(ctx)
	err = c.awaitFilled(loadingGPUs)
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

// whileRuns returns a context that ends when a process has ended: memory of GPUs may be waited for as long as a registry is away.
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

func (s *service) restore(in *admission, c *container, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	ctx := in.ctx
	if err := c.placeMounts(); err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
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
	if c.runtime.Known() {
		return nil, fmt.Errorf("restore %s: runc has a container of this name already: %w", r.ID, errdefs.ErrAlreadyExists)
	}
	if err := c.adaptImages(); err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	if err := s.adaptMemory(ctx, c); err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	leftovers, err := c.leftovers()
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	done, err := c.bundle.begin(restoreFile, c.work)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	clean := true
	defer func() { done(clean) }() // what is not clean delete goes by
	groups, err := criu.Groups(c.restore)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	claim, err := runc.MakeClaim(c.bundle.dir, c.bundle.cgroupsPath, groups...)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", r.ID, err)
	}
	asked := false // runc
	defer func() {
		if !asked {
			warn(ctx, "remove the cgroup of a restore", claim.End())
		}
	}()
	if err := c.raiseFence(); err != nil {
		return nil, notRestored(r.ID, err)
	}
	defer func() { warn(ctx, "let packets reach the network of a restore that has failed", c.lowerFence()) }()
	relay, err := guard.Listen(c.bundle.dir, c.fenceOwn, c.compare)
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
	asked = true
	err = criu.InOwnMounts(func() (err error) {
		answer, err = s.TTRPCTaskService.Start(context.WithoutCancel(ctx), r)
		return err
	})
	close(over)
	hung := stalled()
	if err != nil {
		left := c.endRestore(ctx, claim)
		warn(ctx, "remove what a failed restore has made", leftovers.Remove())
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
	in.become(loading)
	warn(ctx, "keep the cgroup of a restored container", claim.Keep())
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

// leftovers are what CRIU makes on mounts of the host's, if it fails.
func (c *container) leftovers() (criu.Leftovers, error) {
	spec, err := c.bundle.spec()
	if err != nil {
		return nil, err
	}
	sources := map[string]string{}
	for _, m := range spec.Mounts {
		if (m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")) && !trust.IsReadonlyMount(m.Options) {
			sources[filepath.Clean(m.Destination)] = m.Source
		}
	}
	return criu.FindLeftovers(c.restore, sources)
}

// adaptImages has CRIU leave alone what is not the container's: in namespaces that it joins, which are its pod's, and the login of the user who started it on another host. The sockets of a member of a group
// get the addresses that the members have now.
func (c *container) adaptImages() error {
	spec, err := c.bundle.spec()
	if err != nil {
		return err
	}
	if err := criu.ForgetLogin(c.restore); err != nil {
		return err
	}
	if err := c.readdress(); err != nil {
		return err
	}
	if path, _ := criu.NamespaceIn(spec, specs.UTSNamespace); path != "" {
		if err := criu.JoinUTS(c.restore, path); err != nil {
			return err
		}
	}
	if path, _ := criu.NamespaceIn(spec, specs.IPCNamespace); path != "" {
		c.ipc, err = criu.JoinIPC(c.restore, path)
	}
	return err
}

// endRestore leaves nothing of a restore that has failed. runc does so itself, unless it was killed: then it has left CRIU, what CRIU has made, its own
// directory for the container, and the cgroup. Where that directory has a state, runc's own delete goes by it. What the restore has not made stays as it is.
func (c *container) endRestore(ctx context.Context, claim *runc.Claim) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	foreign := c.runtime.Foreign() != nil // it has come since, and is why runc has failed
	if !foreign && c.runtime.Known() {
		_ = c.runtime.Kill(ctx) // it may have ended
	}
	err := runc.EndDump(c.work)
	for {
		left := errors.Join(claim.End(), unmountYard(c.work))
		if !foreign {
			left = errors.Join(left, c.runtime.SweepRestore())
		}
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

// yardPrefix begins the name of the directory in CRIU's work directory on which CRIU mounts cgroups of version 1. Source: CRIU 4.2, criu/cgroup.c, prepare_cgroup_sfd.
const yardPrefix = ".criu.cgyard."

// unmountYard unmounts what CRIU, where it was killed, has left mounted in its work directory.
func unmountYard(work string) error {
	entries, err := os.ReadDir(work)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for CRIU's mounts: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), yardPrefix) {
			continue
		}
		if err := mount.UnmountRecursive(filepath.Join(work, e.Name()), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount what CRIU has mounted: %w", err)
		}
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
	// The review has asked for the last, and where that was not granted CRIU is not told of it either.
	external := slices.Contains(c.prepared.Allowed, guard.Privileges) || slices.Contains(c.prepared.Allowed, guard.AllGrants)
	o.TCPEstablished, o.FileLocks, o.ExternalSockets = record.TCPEstablished, record.FileLocks, record.ExternalSockets && external
	o.LazyPages = c.prepared.Lazy
	return o, o.WriteFile(c.bundle.criuConfig())
}
