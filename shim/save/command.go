package save

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// Command is cryo checkpoint as its user sees it: it asks containerd for a checkpoint as any client does, with an order for the container's shim, and shows how far that is.
type Command struct {
	Options
	Store  *store.Store
	Client *containerd.Client
	// Environment is where the checkpoint process looks for credentials and proxies, and for cryo's root and configuration; see [restore.Environment].
	Environment []string
	// Debug receives each line that the checkpoint process logs for debugging. If it is nil, the process logs none.
	Debug func(line string)
}

// asking is a checkpoint of a command's that is under way.
type asking struct {
	Command
	sub      *candidate
	listener *restore.Listener[Result]
	call     chan error // of containerd's Checkpoint, once
	said     bool       // the checkpoint process has said how it went
}

// Run takes a snapshot, names it, signs it and sends it, as the options say. ctx carries containerd's namespace. Without a result there is no snapshot, and the container
// is as it was or the error is of the kind [failure.ErrLost]. With a result the snapshot is complete in the store, and an error says what did not come about
// afterwards, or that the container is lost all the same.
//
// If ctx ends, the checkpoint is undone, unless the snapshot is complete.
func (c Command) Run(ctx context.Context) (r *Result, err error) {
	c.Hooks = c.OrNobody()
	a := &asking{Command: c, call: make(chan error, 1)}
	defer func() {
		if err != nil && !a.said { // else the checkpoint process has told containerd's clients
			tell(ctx, c.Client, c.Options, nil, err)
		}
	}()
	if a.sub, err = find(ctx, c.Client, c.Options); err != nil {
		return nil, err
	}
	work, err := c.Store.Work(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = work.Close() }() // the next process does it
	if a.listener, err = restore.Listen[Result](work.Dir, c.Hooks, c.Debug); err != nil {
		return nil, err
	}
	defer a.listener.Close()
	defer context.AfterFunc(ctx, a.listener.CallOff)()
	ask, err := a.request(ctx, work.Dir)
	if err != nil {
		return nil, err
	}
	// Not cancelled with ctx: the checkpoint process hears of that, and the answer comes when the container is as it was.
	calling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() {
		_, err := c.Client.TaskService().Checkpoint(calling, ask)
		a.call <- errgrpc.ToNative(err)
	}()
	r, err = a.outcome(ctx)
	if r != nil {
		r.MadeBy, r.asked = daemon.MadeBy(a.sub.info.Labels), c.Options
	}
	return r, err
}

// request returns what containerd is asked for. The directory work has the socket of the listener. A shim of a release that knows no orders does not dump into it, since it is not
// empty.
func (a *asking) request(ctx context.Context, work string) (*tasks.CheckpointTaskRequest, error) {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	order := &worker.CheckpointOrder{
		Container: a.Container, Ref: a.Ref, LeaveRunning: a.LeaveRunning, Remove: a.Remove, Parent: a.Parent, Compression: a.Compression, SegmentSize: a.SegmentSize,
		ReadyTimeout: a.ReadyTimeout.Seconds(), GPUTimeout: a.GPUTimeout.Seconds(), GPUEngine: a.GPUEngine, Force: a.Force, Verify: a.Verify, SnapshotOnly: a.SnapshotOnly, Discard: a.Discard, KeyFile: a.KeyFile,
		Progress: a.Progress != nil, Debug: a.Debug != nil, Steps: a.Step != nil, Environment: a.Environment, Report: work,
	}
	if a.Key != nil {
		if order.Key, err = a.Key.Marshal(); err != nil {
			return nil, fmt.Errorf("pass on the private key: %w", err)
		}
	}
	if p := a.Push; p != nil {
		order.Push = &worker.Registry{
			PlainHTTP: p.PlainHTTP, Insecure: p.Insecure, Username: p.Username, Password: p.Password, Concurrency: p.Concurrency,
		}
		if order.Push.CAFile, err = absolute(p.CAFile); err != nil {
			return nil, err
		}
		if order.Push.Credentials, err = absolute(p.DockerConfig); err != nil {
			return nil, err
		}
	}
	id := a.sub.info.ID
	o := &options.CheckpointOptions{ImagePath: work} // with a path, containerd does not look for images itself
	err = worker.Request{ID: id, Namespace: namespace, Address: a.Address, Checkpoint: &worker.Checkpoint{
		TCPEstablished: a.TCPEstablished, FileLocks: a.FileLocks, ExternalUnixSockets: a.ExternalUnixSockets, Order: order,
	}}.Put(o)
	if err != nil {
		return nil, err
	}
	asked, err := typeurl.MarshalAnyToProto(o)
	if err != nil {
		return nil, fmt.Errorf("ask for a checkpoint: %w", err)
	}
	return &tasks.CheckpointTaskRequest{ContainerID: id, Options: asked}, nil
}

// absolute returns the absolute path of a file; empty: none.
func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", path, err)
	}
	return full, nil
}

// answerTime bounds how long containerd's answer may take after the checkpoint process has said its last word. The task's state is settled by then.
const answerTime = 10 * time.Second

// outcome waits for the last word of the checkpoint process, or for the answer of a shim that has not started one, and returns what has come of it.
func (a *asking) outcome(ctx context.Context) (*Result, error) {
	background := context.WithoutCancel(ctx)
	word := make(chan error, 1)
	go func() {
		_, err := a.listener.Await(background, func(*Result) bool { return true })
		word <- err
	}()
	select {
	case <-word:
		select {
		case err := <-a.call:
			a.call <- err
		case <-time.After(answerTime):
		}
	case err := <-a.call:
		a.call <- err
		if a.listener.HeardSoon() { // it goes on without containerd, and without a shim whose container has ended
			<-word
		}
	}
	r, said, state := a.listener.Last()
	a.said = r != nil || said != nil
	switch {
	case said == nil && r != nil:
		return r, nil
	case said == nil:
		return nil, a.unheard(ctx)
	case state == nil && ctx.Err() == nil:
		return r, said // it is nothing about the container
	case state == nil:
		state = &worker.State{Running: true}
	}
	e := &restore.JobError{Container: a.Container, Running: state.Running, Lost: state.Lost, Snapshot: state.Snapshot, Err: said}
	if ctx.Err() != nil && !e.Lost && errors.Is(said, context.Canceled) {
		e.Err = failure.New(context.Canceled, said.Advice, "checkpoint %s: %w", a.Container, context.Cause(ctx))
	}
	return r, e
}

// unheard returns the error of a checkpoint of which the checkpoint process has not said how it went.
func (a *asking) unheard(ctx context.Context) error {
	var err error
	select {
	case err = <-a.call:
	default: // containerd has not answered
	}
	switch {
	case err == nil:
		err = worker.ErrCheckpointDied
	case errdefs.IsAlreadyExists(err) && !a.listener.Heard():
		err = failure.New(errdefs.ErrFailedPrecondition,
			"take the checkpoint with the cryo command of that release, or end the container and start it anew under the installed one",
			"checkpoint %s: the container's shim is of a release before this cryo", a.Container)
		return err
	default:
		err = failure.Passed(err)
	}
	if failure.Rule(err) == worker.KeptRule {
		return &restore.JobError{Container: a.Container, Err: err}
	}
	a.sub.asked = true
	return failed(ctx, a.Container, a.sub.lost(err))
}
