package shim

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/shim/worker"
)

// fillTime bounds how long a checkpoint or a pause waits for memory to be there.
const fillTime = 5 * time.Minute

// fillRate bounds, in bytes a second, how fast memory is filled in that no process waits for. 0: nothing does.
func (s *service) fillRate(c *container) int64 {
	if c.gpus.record != nil { // the container waits for all of it
		return 0
	}
	return s.config.Restore.FillRate << 20
}

// beginFilling has the restore process get ready to fill in the container's memory, and sees to it from now on. Where CRIU's images have all memory it gives nil.
func (s *service) beginFilling(ctx context.Context, c *container) (*worker.Filling, error) {
	if !c.prepared.Lazy {
		return nil, nil
	}
	f, err := worker.StartFilling(c.work, c.process, s.fillRate(c))
	if err != nil {
		return nil, err
	}
	c.filling.Store(f)
	go s.watchFilling(context.WithoutCancel(ctx), c, f)
	return f, nil
}

// noteTime is between two notes of how much memory is there.
const noteTime = time.Second / 2

// waitingTopic is that of the event by which containerd's clients hear that a container's memory does not come, as where the registry is away. The event has the
// container's id and the reason.
const waitingTopic = "/cryo/restore/waiting"

// noteFilling notes in the bundle how much memory is there, until all is or filling has failed. It gives the last note.
func (s *service) noteFilling(ctx context.Context, c *container, f *worker.Filling) (noted worker.MemoryNote) {
	warn(ctx, "note the state of a container", noted.Write(c.bundle.dir))
	ticker := time.NewTicker(noteTime)
	defer ticker.Stop()
	for {
		select {
		case <-f.Done():
			return noted
		case <-ticker.C:
		}
		there := f.There()
		if there == nil || *there == noted {
			continue
		}
		if log := log.G(ctx).WithField("id", c.request.ID); there.Waiting != "" && noted.Waiting == "" {
			log.WithField("reason", there.Waiting).Warn("the memory of a restored container does not come at present; who needs it waits")
			s.publish(ctx, waitingTopic, map[string]any{"container_id": c.request.ID, "reason": there.Waiting})
		} else if there.Waiting == "" && noted.Waiting != "" {
			log.Info("the memory of a restored container comes again")
		}
		noted = *there
		warn(ctx, "note the state of a container", noted.Write(c.bundle.dir))
	}
}

// watchFilling waits until the container's memory is there. A container that cannot get it is ended.
func (s *service) watchFilling(ctx context.Context, c *container, f *worker.Filling) {
	id := c.request.ID
	noted := s.noteFilling(ctx, c, f)
	r, err := f.Result()
	if err == nil {
		warn(ctx, "note the state of a container", worker.MemoryNote{Here: r.Bytes, Total: r.Bytes}.Write(c.bundle.dir))
		log.G(ctx).WithField("id", id).WithField("bytes", r.Bytes).WithField("seconds", r.Seconds).WithField("peak", r.Peak).
			Info("the memory of a restored container is there")
		return
	}
	defer f.End()
	if errors.Is(err, worker.ErrFillEnded) {
		return
	}
	log.G(ctx).WithField("id", id).WithError(err).Error("a container is ended since its memory cannot be filled in")
	noted.Lost = err.Error()
	warn(ctx, "note the state of a container", noted.Write(c.bundle.dir))
	ctx, cancel := context.WithTimeout(ctx, fillTime)
	defer cancel()
	// CRIU may be at work still, and wait for what does not come. It fails by itself where it finds no process to give processes to.
	patience := time.Now()
	if !f.Opened() {
		patience = patience.Add(endTime)
	}
	criu := c.runtime.Restoring(c.work)
	isRestored := func() bool { p := c.life.now(); return p != restoring && p != loading }
	for ctx.Err() == nil {
		if !isRestored() && time.Now().After(patience) {
			criu.End()
		}
		// Killing what runc knows of a container that is being restored does not end the CRIU that waits.
		if err := c.runtime.Kill(ctx); isRestored() && (err == nil || !c.runtime.Known() || s.is(ctx, id, task.Status_STOPPED)) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if !s.is(ctx, id, task.Status_CREATED) { // else the stock service knows of no process
		s.awaitEnd(ctx, id)
	}
}

// awaitFilled waits until all of the container's memory is there, and returns an error if it does not come.
func (c *container) awaitFilled(ctx context.Context) error {
	f := c.filling.Load()
	if f == nil {
		return nil
	}
	select {
	case <-f.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	_, err := f.Result()
	return err
}

// isFilled changes the phase of a container that runs when its memory is there, or does not come.
func (c *container) isFilled() {
	if err := c.awaitFilled(context.Background()); err != nil {
		c.life.lose(checkpoint.Lost("restore", c.request.ID, err))
		return
	}
	c.life.move(filling, running)
}

// outliveFilling waits, though not for ever, until nothing is left of what filled in the memory of a container that has ended.
func (s *service) outliveFilling(ctx context.Context, c *container) {
	if c == nil || c.filling.Load() == nil {
		return
	}
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	f := c.filling.Load()
	select {
	case <-f.Ended():
	case <-ended.Done():
		log.G(ctx).Warn("a container's memory is still being filled in, and it has ended")
		f.End()
	}
}
