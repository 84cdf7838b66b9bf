package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"github.com/cryo-project/cryo/runtime/checkpoint"
)

// held is a checkpoint that the shim holds: containerd is asked for it in one goroutine, the shim speaks over a socket.
type held struct {
	name     string
	pid      uint32 // of the container's first process
	client   *checkpoint.Client
	call     chan error // of containerd's Checkpoint, once
	cancel   func()     // of that call
	released bool
	pending  bool          // containerd's call goes on until device memory has come
	patience time.Duration // for the container to be as before
}

// gpuUndoTime bounds the undoing of a checkpoint of a container with GPUs: device memory has to be moved back.
const gpuUndoTime = 15 * time.Minute

// hold asks for a checkpoint of a container into the directories images and work, and waits until the container is
// dumped and frozen. The caller must call resume or kill, or close, which lets the container go on. client listens in work and
// is closed with it.
func hold(ctx context.Context, c *containerd.Client, client *checkpoint.Client, sub *subject, images, work string, f checkpointFlags) (*held, checkpoint.Dumped, error) {
	none := checkpoint.Dumped{}
	asked, err := typeurl.MarshalAnyToProto(&options.CheckpointOptions{
		ImagePath:           images,
		WorkPath:            work,
		OpenTcp:             f.tcp,
		ExternalUnixSockets: f.externalUnix,
		FileLocks:           f.locks,
	})
	if err != nil {
		return nil, none, errors.Join(fmt.Errorf("ask for a checkpoint: %w", err), client.Close())
	}
	// Not cancelled with ctx: hanging up is what makes the shim stop, and its answer says that the container goes on.
	calling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &held{name: sub.name, pid: sub.pid, client: client, call: make(chan error, 1), cancel: cancel, patience: undoTime}
	if sub.gpus {
		h.patience = gpuUndoTime
	}
	go func() {
		_, err := c.TaskService().Checkpoint(calling, &tasks.CheckpointTaskRequest{ContainerID: sub.info.ID, Options: asked})
		h.call <- errgrpc.ToNative(err)
	}()
	dumped, err := h.frozen(ctx)
	if err != nil {
		_ = client.Close()
		h.cancel()
		return nil, none, err
	}
	return h, dumped, nil
}

// frozen waits for the shim's word or for the end of the call, whichever comes first.
func (h *held) frozen(ctx context.Context) (checkpoint.Dumped, error) {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	type answer struct {
		dumped checkpoint.Dumped
		err    error
	}
	spoken := make(chan answer, 1)
	go func() {
		d, err := h.client.Frozen(waiting)
		spoken <- answer{d, err}
	}()
	select {
	case s := <-spoken:
		if s.err == nil {
			return s.dumped, nil
		}
		if ctx.Err() != nil {
			return s.dumped, h.hangUp(ctx)
		}
		// What containerd answers has a kind; the socket only says that it was closed.
		if err := h.result(5 * time.Second); err != nil {
			return s.dumped, err
		}
		return s.dumped, s.err
	case err := <-h.call:
		stop()
		<-spoken
		if err == nil {
			err = fmt.Errorf("take a checkpoint of %s: the shim does not speak cryo's protocol: %w", h.name, errdefs.ErrFailedPrecondition)
		}
		return checkpoint.Dumped{}, h.explain(err)
	}
}

// hangUp makes the shim stop what it does for us, and waits until the container goes on.
func (h *held) hangUp(ctx context.Context) error {
	_ = h.client.Close()
	err := h.result(h.patience)
	var lost *lostError
	if errors.As(err, &lost) {
		return err
	}
	return context.Cause(ctx)
}

// result waits a while for the end of the call and gives its error.
func (h *held) result(patience time.Duration) error {
	select {
	case err := <-h.call:
		return h.explain(err)
	case <-time.After(patience):
		return nil
	}
}

// explain gives errors that have lost their type on the way through containerd a type again.
func (h *held) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "the container is lost"):
		return &lostError{err: &remoteError{err: err}}
	case strings.Contains(err.Error(), "another checkpoint of this container is under way"):
		return &checkpoint.BusyError{ID: h.name}
	}
	if strings.Contains(err.Error(), "ttrpc: closed") && h.gone() {
		return &lostError{err: fmt.Errorf("checkpoint %s: the container is lost: its shim has died: %w", h.name, err)}
	}
	return &remoteError{err: err}
}

// gone waits a while for the end of the container, which containerd brings about when a shim has died.
func (h *held) gone() bool {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if !exists(fmt.Sprintf("/proc/%d", h.pid)) {
			return true
		}
	}
	return false
}

// resume lets the container run on, also where ctx has ended meanwhile.
func (h *held) resume(ctx context.Context) (checkpoint.Released, error) {
	return h.release(ctx, h.client.Resume)
}

// kill ends the container.
func (h *held) kill(ctx context.Context) (checkpoint.Released, error) {
	return h.release(ctx, h.client.Kill)
}

func (h *held) release(ctx context.Context, decide func(context.Context) (checkpoint.Released, error)) (checkpoint.Released, error) {
	if h.released {
		return checkpoint.Released{}, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.patience)
	defer cancel()
	r, err := decide(ctx)
	if err != nil {
		if cause := h.result(5 * time.Second); cause != nil {
			h.released, err = true, cause // the shim is done with it
		}
		return r, err
	}
	h.released = true
	if h.pending = r.DevicesPending; h.pending {
		return r, nil
	}
	// The task's state is settled only when containerd has answered.
	return r, h.result(undoTime)
}

// giveUp is close where there will be no snapshot. A container that stands still while its device memory comes would do so until all has
// come: hanging up ends that, and it has its memory again.
func (h *held) giveUp(ctx context.Context, devices bool) error {
	if h.released || !devices {
		return h.close(ctx)
	}
	defer h.cancel()
	h.released = true
	err := h.client.Close()
	var lost *lostError
	if result := h.result(h.patience); errors.As(result, &lost) {
		err = errors.Join(err, result) // all else is that nobody was there any more
	}
	return err
}

// why gives the shim's reason for not sending device memory any more; nil if it has none. It lets the container go on.
func (h *held) why(ctx context.Context) error {
	if !h.released {
		_, err := h.resume(ctx)
		return err
	}
	return h.settle()
}

// settle waits for the end of containerd's call where device memory was pending, which has come or is given up.
func (h *held) settle() error {
	if !h.pending {
		return nil
	}
	h.pending = false
	return h.result(h.patience)
}

// close lets the container go on if it is frozen still, and waits until it does.
func (h *held) close(ctx context.Context) error {
	defer h.cancel()
	_, err := h.resume(ctx)
	err = errors.Join(err, h.client.Close())
	if h.pending {
		_ = h.settle() // hanging up has ended it, and the reason is known
	}
	return err
}
