package save

import (
	"context"
	"errors"
	"time"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/shim/worker"
)

// heldContainer is a container that its shim has dumped and holds.
type heldContainer struct {
	sub      *candidate
	shim     *worker.Shim
	released bool // it has been decided what becomes of it
	heard    bool // the shim has said what has become of it, which counts once
}

// undoTime bounds the undoing of a checkpoint.
const undoTime = 60 * time.Second

// gpuUndoTime bounds the undoing of a checkpoint of a container with GPUs: device memory has to be moved back.
const gpuUndoTime = 15 * time.Minute

// hold has the shim dump the container into the directory images, with CRIU's work directory work, and waits until it is dumped and frozen. The caller must call
// release, or close, which lets the container go on.
func (t *taking) hold(ctx context.Context, sub *candidate, images, work string) (*heldContainer, checkpoint.Dumped, error) {
	h := &heldContainer{sub: sub, shim: t.shim}
	sub.asked = true
	refused := false // by another member of its group
	var held func(context.Context, checkpoint.Held) error
	if t.Step != nil {
		held = func(ctx context.Context, h checkpoint.Held) error {
			step := worker.Frozen
			if h.Cut {
				step = worker.Held
			}
			_, err := t.pass(ctx, worker.Reached{Step: step})
			refused = err != nil
			return err
		}
	}
	dumped, err := t.shim.Hold(ctx, worker.Hold{
		Images: images, Work: work, TCPEstablished: t.TCPEstablished, FileLocks: t.FileLocks, ExternalUnixSockets: t.ExternalUnixSockets, Others: t.others,
		SkipLock: criu.AtLeast(sub.config.Host.CRIU, criu.ForSockets),
		Options: checkpoint.Options{
			GPUTimeout: t.GPUTimeout.Seconds(), Force: t.Force, Hooks: trust.HookLabels(sub.info.Labels), Devices: t.GPUEngine != image.DriverEngine, Precopy: t.GPUEngine != image.DriverEngine, KeeperOnly: t.GPUEngine == image.KeeperEngine, LeaveRunning: t.LeaveRunning,
		},
	}, held)
	if err == nil {
		return h, dumped, nil
	}
	if ctx.Err() == nil && !refused && failure.Rule(err) != worker.TogetherRule {
		return nil, dumped, h.explain(err)
	}
	if undone := h.undo(); isLost(undone) {
		return nil, dumped, undone
	}
	if ctx.Err() == nil {
		return nil, dumped, err
	}
	return nil, dumped, context.Cause(ctx)
}

// undo waits until the container is as it was.
func (h *heldContainer) undo() error {
	h.released = true
	h.shim.Undo()
	return h.settle()
}

// explain keeps what the shim has said, and returns it.
func (h *heldContainer) explain(err error) error {
	if told := (*failure.Error)(nil); errors.As(err, &told) && !h.shim.Silent() {
		h.sub.told = told
		if errors.Is(told, failure.ErrBusy) {
			return checkpoint.Busy(h.sub.name)
		}
	}
	return err
}

// release has the container run on, or ends it, also where ctx has ended meanwhile.
func (h *heldContainer) release(ctx context.Context, d checkpoint.Decision) (checkpoint.Released, error) {
	if h.released {
		return checkpoint.Released{}, nil
	}
	h.released = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.sub.patience())
	defer cancel()
	r, err := h.shim.Decide(ctx, d)
	if err != nil {
		h.heard = true
		return r, h.explain(err)
	}
	if r.Killed {
		err = h.settle() // the task's state is settled only then
	}
	return r, err
}

// settle waits until the shim has observed for a moment the container that was let go on, and until device memory that was pending has come or is given up. An error that is a
// loss: the container does not run as before.
func (h *heldContainer) settle() error {
	if !h.released || h.heard {
		return nil
	}
	h.heard = true
	return h.explain(h.shim.Await(h.sub.patience()))
}

// giveUp is close where there will be no snapshot: it also ends what is on its way from devices.
func (h *heldContainer) giveUp() error {
	if err := h.undo(); isLost(err) { // all else is that it was undone
		return err
	}
	return nil
}

// close lets the container go on if it is frozen still, and waits until it does.
func (h *heldContainer) close(ctx context.Context) error {
	_, err := h.release(ctx, checkpoint.Resume)
	if settled := h.settle(); isLost(settled) { // any other error has been returned before
		err = errors.Join(err, settled)
	}
	return err
}
