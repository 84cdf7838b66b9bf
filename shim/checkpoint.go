package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/worker"
)

// Checkpoint dumps the container into r.Path, or has a checkpoint process take a snapshot of it. State, Wait, Stats and events go on meanwhile.
func (s *service) Checkpoint(ctx context.Context, r *taskAPI.CheckpointTaskRequest) (*ptypes.Empty, error) {
	if err := s.checkpoint(ctx, r); err != nil {
		return nil, reply(err)
	}
	return &ptypes.Empty{}, nil
}

func (s *service) checkpoint(ctx context.Context, r *taskAPI.CheckpointTaskRequest) error {
	var o options.CheckpointOptions
	if r.Options != nil {
		if err := typeurl.UnmarshalTo(r.Options, &o); err != nil {
			return fmt.Errorf("read checkpoint options: %w: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	c := s.container(r.ID)
	if c == nil {
		return fmt.Errorf("checkpoint %s: no such container: %w", r.ID, errdefs.ErrNotFound)
	}
	order, err := worker.RequestIn(&o)
	if err != nil {
		return err
	}
	if order != nil {
		return s.snapshot(ctx, c, order)
	}
	to, err := c.sendTo(&o)
	if err != nil {
		return err
	}
	if to != "" {
		return s.send(ctx, c, to, r.Path, &o)
	}
	_, err = s.dump(ctx, c, dumpRequest{images: r.Path, work: o.WorkPath, options: &o})
	return err
}

// dumpRequest says how a container is dumped.
type dumpRequest struct {
	images, work string // directories of CRIU's; work may be empty
	options      *options.CheckpointOptions
	holder       *worker.Holder // nil: a stock client takes the images
}

// dump dumps the container, with the checkpoint process that holds it or for a stock client.
func (s *service) dump(ctx context.Context, c *container, r dumpRequest) (checkpoint.Result, error) {
	id := c.request.ID
	in, err := c.life.admit(ctx, toSave, id)
	if errors.Is(err, errKilled) {
		err = checkpoint.Lost("checkpoint", id, err)
	}
	if err != nil {
		return checkpoint.Result{}, err
	}
	next := in.from
	defer func() { in.over(next) }()
	defer c.endsWhenKilled(in.ctx)()
	result, err := s.dumpAlone(in, c, r)
	if err != nil && errors.Is(context.Cause(in.ctx), errKilled) && !errors.Is(err, failure.ErrLost) {
		err = checkpoint.Lost("checkpoint", id, err)
	}
	switch {
	case err == nil && result.Killed || errors.Is(err, failure.ErrLost):
		next = ended
	case c.saved != nil:
		next = parked
	default:
		next = running
	}
	return result, err
}

// dumpAlone runs while nothing else uses the container.
func (s *service) dumpAlone(in *admission, c *container, r dumpRequest) (result checkpoint.Result, err error) {
	ctx, id, o := in.ctx, c.request.ID, r.options
	state, err := s.TTRPCTaskService.State(ctx, &taskAPI.StateRequest{ID: id})
	if err != nil {
		return result, err
	}
	if state.Status != task.Status_RUNNING && state.Status != task.Status_PAUSED {
		return result, checkpoint.NotRunning(id, statusWord(state.Status))
	}
	if _, err := s.giveCRIU(); err != nil {
		return result, err
	}
	criuOptions, err := s.criuOptions(c)
	if err != nil {
		return result, err
	}
	usual := criuOptions
	criuOptions.LinkRemap, criuOptions.SkipInFlight = true, true
	// A member of a group is behind its fence while it is dumped. CRIU's lock would only take time: one run of iptables after the other, for each connection of a container in the host's network.
	criuOptions.Fenced = r.holder != nil && r.holder.Together
	if r.holder != nil && r.holder.SkipLock && s.config.Dump.NetworkLock == "" && (!o.OpenTcp || criuOptions.Fenced) {
		criuOptions.NetworkLock = criu.SkipLock
	}
	undo, err := makeImages(r.images)
	if err != nil {
		return result, err
	}
	work := r.work
	if work == "" {
		if work, err = os.MkdirTemp(c.bundle.dir, "criu-"); err != nil {
			return result, fmt.Errorf("make CRIU's work directory: %w", err)
		}
		defer os.RemoveAll(work)
	}
	done, err := c.bundle.begin(dumpFile, work)
	if err != nil {
		return result, err
	}
	defer done(true)
	pages, err := configure(c, criuOptions, r.holder)
	if err != nil {
		return result, err
	}
	defer settle(ctx, c, usual)
	defer pages.Close() // nil is closed without harm
	request := checkpoint.Request{
		ID:     id,
		Frozen: state.Status == task.Status_PAUSED,
		First:  int(state.Pid),
		Alive:  func() bool { return !errors.Is(context.Cause(ctx), errKilled) && !runc.Ended(int(state.Pid)) },
		Dump: runc.Dump{
			Images:          r.images,
			Work:            work,
			Exit:            o.Exit,
			TCPEstablished:  o.OpenTcp,
			ExternalSockets: o.ExternalUnixSockets,
			Terminal:        o.Terminal,
			FileLocks:       o.FileLocks,
			EmptyNamespaces: o.EmptyNamespaces,
			Parent:          o.ParentPath,
			CgroupsMode:     o.CgroupsMode,
			Pages:           pages,
			Patience:        patience(criuOptions),
		},
	}
	if r.holder != nil {
		request.Hold, request.Together, request.Others = r.holder, r.holder.Together, r.holder.Others
	}
	result, err = s.runWithHooks(ctx, in, c, request, r.holder)
	if err == nil && request.Hold == nil && !o.Exit && ctx.Err() != nil { // the client that would take the images is gone
		err = checkpoint.Failed(id, context.Cause(ctx))
	}
	if err == nil && (result.Killed || request.Hold == nil && o.Exit) {
		result.Killed = true
		s.awaitEnd(ctx, id)
	}
	lost := errors.Is(err, failure.ErrLost)
	if err != nil {
		s.keepLog(ctx, c, work)
		if !lost || r.holder == nil { // else the checkpoint process may have all that is left of the container
			undo()
		}
	}
	if lost { // the client may be gone
		log.G(ctx).WithField("id", id).WithError(err).Error("a container was lost in a checkpoint")
	}
	return result, err
}

// run takes the checkpoint, with what the container has on GPUs. A container that is parked from a checkpoint before stays so.
func (s *service) run(ctx context.Context, in *admission, c *container, request checkpoint.Request, holder *worker.Holder) (checkpoint.Result, error) {
	if !c.gpus.nvidia {
		return checkpoint.Run(ctx, c.runtime, request)
	}
	request.Devices, request.Parked = c.saved, in.from == parked
	if !request.Parked {
		engine, err := s.engine(ctx, c, holder, request.Frozen)
		if err != nil {
			return checkpoint.Result{}, checkpoint.Failed(request.ID, err)
		}
		engine.First = request.First
		request.Devices = engine
	}
	result, err := checkpoint.Run(ctx, c.runtime, request)
	c.saved = nil
	if result.Parked {
		c.saved = request.Devices
	}
	if result.Pending {
		err = s.drain(ctx, in, request)
	}
	return result, err
}

// patience is how long CRIU may make no progress in a dump: a moment longer than it may take by its own timeout, at which it gives up by itself.
func patience(o criu.Options) time.Duration {
	const moment, usual = 3 * time.Second, 30 * time.Second
	return cmp.Or(o.Timeout, usual) + moment
}

// endTime bounds how long a container that was ended may take to be known as stopped.
const endTime = 10 * time.Second

// awaitEnd waits until the container is stopped for every client that asks, so that it can be deleted at once.
func (s *service) awaitEnd(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	_, err := s.TTRPCTaskService.Wait(ctx, &taskAPI.WaitRequest{ID: id})
	warn(ctx, "wait for the end of a container that was ended after its checkpoint", err)
}

// criuOptions are the configured options with what the container's creator has asked of CRIU.
func (s *service) criuOptions(c *container) (criu.Options, error) {
	o := s.config.CRIUOptions()
	o.Include = c.bundle.ownCRIUConfig
	// CRIU's plugins act on their own where they are installed; an empty directory keeps them out.
	o.Libdir = filepath.Join(c.bundle.dir, "criu-plugins")
	if err := os.MkdirAll(o.Libdir, 0o700); err != nil {
		return o, fmt.Errorf("make an empty plugin directory: %w", err)
	}
	return o, nil
}

// makeImages makes sure that images is an empty directory; undo takes back what was made and what was put there.
func makeImages(images string) (undo func(), err error) {
	if images == "" {
		return nil, fmt.Errorf("no directory for the images is named: %w", errdefs.ErrInvalidArgument)
	}
	entries, err := os.ReadDir(images)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(images, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory for the images: %w", err)
		}
		return func() { _ = os.RemoveAll(images) }, nil
	case err != nil:
		return nil, fmt.Errorf("look into the directory for the images: %w", err)
	case len(entries) > 0:
		return nil, fmt.Errorf("directory %s for the images is not empty: name a new or an empty one: %w", images, errdefs.ErrAlreadyExists)
	}
	return func() {
		entries, _ := os.ReadDir(images)
		for _, e := range entries {
			_ = os.RemoveAll(filepath.Join(images, e.Name()))
		}
	}, nil
}

// keepLog keeps CRIU's log of a failed dump in the bundle, where the stock shim puts it.
func (s *service) keepLog(ctx context.Context, c *container, work string) {
	data, err := os.ReadFile(filepath.Join(work, "dump.log"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(c.bundle.dir, "criu-dump.log"), data, 0o600)
	}
	warn(ctx, "keep CRIU's log", err)
}

func statusWord(s task.Status) string {
	switch s {
	case task.Status_CREATED:
		return "created"
	case task.Status_STOPPED:
		return "stopped"
	}
	return s.String()
}
