package take

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/shim/daemon"
)

// heldContainer is a checkpoint that the shim holds: containerd is asked for it in one goroutine, the shim speaks over a socket.
type heldContainer struct {
	sub      *candidate
	client   *checkpoint.Client
	call     chan error // of containerd's Checkpoint, once
	cancel   func()     // of that call
	released bool
	silent   bool // the shim hung up without a word about how it went
	pending  bool // the container was let go on, and the shim has not reported yet that it runs as before
}

// greetTime is how long a shim may take to turn to the command once containerd has gone away, if it was told to take a checkpoint before.
const greetTime = 5 * time.Second

// undoTime bounds the undoing of a checkpoint.
const undoTime = 60 * time.Second

// gpuUndoTime bounds the undoing of a checkpoint of a container with GPUs: device memory has to be moved back.
const gpuUndoTime = 15 * time.Minute

// hold asks for a checkpoint of a container into the directories images and work, and waits until the container is
// dumped and frozen. The caller must call release, or close, which lets the container go on. client listens in work and
// is closed with it.
func (t *taking) hold(ctx context.Context, client *checkpoint.Client, sub *candidate, images, work string) (*heldContainer, checkpoint.Dumped, error) {
	none := checkpoint.Dumped{}
	asked, err := typeurl.MarshalAnyToProto(&options.CheckpointOptions{
		ImagePath:           images,
		WorkPath:            work,
		OpenTcp:             t.TCPEstablished,
		ExternalUnixSockets: t.ExternalUnixSockets,
		FileLocks:           t.FileLocks,
	})
	if err != nil {
		return nil, none, errors.Join(fmt.Errorf("ask for a checkpoint: %w", err), client.Close())
	}
	// Not cancelled with ctx: hanging up is what makes the shim stop, and its answer says that the container goes on.
	calling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &heldContainer{sub: sub, client: client, call: make(chan error, 1), cancel: cancel}
	sub.asked = true
	go func() {
		_, err := t.client.TaskService().Checkpoint(calling, &tasks.CheckpointTaskRequest{ContainerID: sub.info.ID, Options: asked})
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
func (h *heldContainer) frozen(ctx context.Context) (checkpoint.Dumped, error) {
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
	var err error
	select {
	case s := <-spoken:
		err = s.err
		if err == nil {
			return s.dumped, nil
		}
		if ctx.Err() == nil { // what containerd answers counts: the socket only says that it was closed
			if answered := h.result(5 * time.Second); answered != nil && !daemon.Gone(answered) {
				return s.dumped, answered
			}
		}
	case err = <-h.call:
		h.call <- err
		var within time.Duration
		if daemon.Gone(err) {
			within = greetTime
		}
		if err != nil && (h.client.Left() == nil || ctx.Err() != nil) && h.client.Greeted(within) {
			if s := <-spoken; s.err == nil && ctx.Err() == nil && daemon.Gone(err) {
				return s.dumped, nil
			}
		} else {
			stop()
			<-spoken
		}
		if err == nil {
			err = fmt.Errorf("take a checkpoint of %s: the shim does not speak cryo's protocol: %w", h.sub.name, errdefs.ErrFailedPrecondition)
		}
	}
	if ctx.Err() != nil {
		return checkpoint.Dumped{}, h.hangUp(ctx)
	}
	return checkpoint.Dumped{}, h.explain(err)
}

// hangUp makes the shim stop what it does for us, and waits until the container goes on.
func (h *heldContainer) hangUp(ctx context.Context) error {
	if err := h.leave(); isLost(err) {
		return err
	}
	return context.Cause(ctx)
}

// leave hangs up, and waits until the shim has undone what it does.
func (h *heldContainer) leave() error {
	deadline := time.Now().Add(h.sub.patience())
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := h.client.HangUp(ctx)
	err = errors.Join(err, h.result(max(time.Until(deadline), 5*time.Second)))
	if told := h.client.Left(); told != nil {
		return h.explain(told)
	}
	return err
}

// result waits a while for the end of the call and gives its error.
func (h *heldContainer) result(patience time.Duration) error {
	select {
	case err := <-h.call:
		return h.explain(err)
	case <-time.After(patience):
		return nil
	}
}

// explain returns the error that the shim has left, if it has, else what containerd says.
func (h *heldContainer) explain(err error) error {
	if err == nil {
		return nil
	}
	told := h.client.Left()
	if told == nil && !errors.As(err, &told) {
		return &daemon.Error{Err: err}
	}
	h.sub.told = told
	if errors.Is(told, failure.ErrBusy) {
		return checkpoint.Busy(h.sub.name)
	}
	return told
}

// release has the client let the container run on, or end it, also where ctx has ended meanwhile.
func (h *heldContainer) release(ctx context.Context, decide func(context.Context) (checkpoint.Released, error)) (checkpoint.Released, error) {
	if h.released {
		return checkpoint.Released{}, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.sub.patience())
	defer cancel()
	r, err := decide(ctx)
	if err != nil {
		h.released = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) // the other end is closed
		h.silent = h.released && h.client.Left() == nil
		if cause := h.result(5 * time.Second); cause != nil {
			h.released = true // the shim is done with it
			if !daemon.Gone(cause) {
				err = cause
			}
		}
		return r, h.explain(err)
	}
	h.released = true
	if h.pending = !r.Killed; h.pending {
		return r, nil
	}
	return r, h.answered(undoTime)
}

// answered waits for the end of containerd's call: the task's state is settled only then. A containerd that is away has no answer; the shim may have left one.
func (h *heldContainer) answered(patience time.Duration) error {
	err := h.result(patience)
	if daemon.Gone(err) {
		return nil
	}
	return err
}

// giveUp is close where there will be no snapshot: hanging up also ends what is on its way from devices, and the container has its memory
// again.
func (h *heldContainer) giveUp(ctx context.Context) error {
	if h.released {
		return h.close(ctx)
	}
	defer h.cancel()
	h.released = true
	if err := h.leave(); isLost(err) { // all else is that the other end was closed
		return err
	}
	return nil
}

// why returns the shim's reason for not sending device memory any more; nil if it has none. It lets the container go on.
func (h *heldContainer) why(ctx context.Context) error {
	if _, err := h.release(ctx, h.client.Resume); err != nil {
		return err
	}
	return h.settle()
}

// settle waits until the shim has observed for a moment the container that was let go on, and until device memory that was pending has come or is given up. An error that is a
// loss: the container does not run as before.
func (h *heldContainer) settle() error {
	if !h.pending {
		return nil
	}
	h.pending = false
	return h.answered(h.sub.patience())
}

// close lets the container go on if it is frozen still, and waits until it does.
func (h *heldContainer) close(ctx context.Context) error {
	defer h.cancel()
	_, err := h.release(ctx, h.client.Resume)
	err = errors.Join(err, h.client.Close())
	if settled := h.settle(); isLost(settled) { // any other error comes of hanging up, and the caller has the reason
		err = errors.Join(err, settled)
	}
	return err
}
