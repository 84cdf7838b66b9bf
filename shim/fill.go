package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/shim/fill"
	"github.com/cryo-project/cryo/shim/notes"
	"github.com/cryo-project/cryo/shim/order"
)

// fillTime bounds how long a checkpoint or a pause waits for memory to be there.
const fillTime = 5 * time.Minute

// FillingError says that a container's memory is still being filled in. Its kind is Unavailable.
type FillingError struct{ ID string }

func (e *FillingError) Error() string {
	return fmt.Sprintf("container %s was restored and its memory is still being filled in after %s", e.ID, fillTime)
}

// Hint says what to do.
func (e *FillingError) Hint() string { return "try again later, or restore with cryo restore --eager" }

// Unwrap gives the kind.
func (e *FillingError) Unwrap() error { return errdefs.ErrUnavailable }

// order gives what memory is to be filled in after the restore; nil: none.
func (s *service) order(c *container) (*order.Order, error) {
	if c.prepared.Memory == nil {
		return nil, nil
	}
	if !s.config.Restore.Lazy {
		return nil, &lazyOffError{}
	}
	o := *c.prepared.Memory
	if c.gpus.record == nil { // else the container waits for all of it
		o.Rate = s.config.Restore.FillRate << 20
	}
	return &o, nil
}

// lazyOffError says that the command and the shim do not have the same configuration. Its kind is FailedPrecondition.
type lazyOffError struct{}

func (*lazyOffError) Error() string {
	return "memory shall be filled in later, which the shim's configuration does not allow"
}

// Hint says what to do.
func (*lazyOffError) Hint() string {
	return "use cryo restore --eager, or give containerd and cryo the same configuration (restore.lazy in /etc/cryo/config.toml, CRYO_CONFIG)"
}

// Unwrap gives the kind.
func (*lazyOffError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// beginFilling has what fills in the container's memory get ready, and sees to it from now on. Without an order it gives nil.
func (s *service) beginFilling(ctx context.Context, c *container, o *order.Order) (*fill.Filling, error) {
	if o == nil {
		return nil, nil
	}
	f, err := fill.Start(c.work, *o)
	if err != nil {
		return nil, err
	}
	c.filling.Store(f)
	go s.watchFilling(context.WithoutCancel(ctx), c, f)
	return f, nil
}

// endFilling ends it after a restore that failed, and tells whether it was the cause.
func endFilling(f *fill.Filling) (cause error) {
	if f == nil {
		return nil
	}
	select {
	case <-f.Done():
		_, cause = f.Result()
	default:
	}
	f.End()
	return cause
}

// followFilling makes sure that what runs now is really being filled in.
func followFilling(ctx context.Context, f *fill.Filling) error {
	if f == nil {
		return nil
	}
	return f.Restored(context.WithoutCancel(ctx))
}

// noteTime is between two notes of how much memory is there.
const noteTime = time.Second / 2

// noteFilling notes in the bundle how much memory is there, until all is or filling has failed.
func noteFilling(ctx context.Context, c *container, f *fill.Filling) {
	var noted notes.Memory
	note(ctx, noted.Write(c.bundle.dir))
	ticker := time.NewTicker(noteTime)
	defer ticker.Stop()
	for {
		select {
		case <-f.Done():
			return
		case <-ticker.C:
		}
		if there := f.There(); there != nil && *there != noted {
			noted = *there
			note(ctx, noted.Write(c.bundle.dir))
		}
	}
}

// note logs that something could not be noted, which only those miss who list containers.
func note(ctx context.Context, err error) {
	if err != nil {
		log.G(ctx).WithError(err).Warn("note the state of a container")
	}
}

// watchFilling waits until the container's memory is there. A container that cannot get it is ended.
func (s *service) watchFilling(ctx context.Context, c *container, f *fill.Filling) {
	id := c.request.ID
	noteFilling(ctx, c, f)
	r, err := f.Result()
	if err == nil {
		note(ctx, notes.Memory{Here: r.Bytes, Total: r.Bytes}.Write(c.bundle.dir))
		log.G(ctx).WithField("id", id).WithField("bytes", r.Bytes).WithField("seconds", r.Seconds).WithField("peak", r.Peak).
			Info("the memory of a restored container is there")
		return
	}
	defer f.End()
	if errors.Is(err, fill.ErrEnded) {
		return
	}
	log.G(ctx).WithField("id", id).WithError(err).Error("a container is ended since its memory cannot be filled in")
	note(ctx, notes.WriteLost(c.bundle.dir, err))
	ctx, cancel := context.WithTimeout(ctx, fillTime)
	defer cancel()
	// CRIU may be at work still, and wait for what does not come. It fails by itself where it finds nobody to give processes to.
	patience := time.Now()
	if !f.Opened() {
		patience = patience.Add(endTime)
	}
	restoring := c.runtime.Restoring(c.work)
	for ctx.Err() == nil {
		if c.restoring.Load() && time.Now().After(patience) {
			restoring.End()
		}
		// Killing what runc knows of a container that is being restored does not end the CRIU that waits.
		if err := c.runtime.Kill(ctx); !c.restoring.Load() && (err == nil || !c.runtime.Known(ctx)) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.awaitEnd(ctx, id)
}

// awaitFilled waits until all of the container's memory is there: nobody may freeze it before, and nothing could be dumped. late, unless
// nil, says when that takes too long.
func (s *service) awaitFilled(ctx context.Context, c *container, late <-chan time.Time) error {
	f := c.filling.Load()
	if f == nil {
		return nil
	}
	select {
	case <-f.Done():
	case <-late:
		return &FillingError{ID: c.request.ID}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, err := f.Result(); err != nil {
		return &checkpoint.LostError{Op: "restore", ID: c.request.ID, Err: err}
	}
	return nil
}

// filled waits until a container's memory has come or cannot come, and tells whether all came. incomplete says why not all of the snapshot came.
func (c *container) filled(ctx context.Context, incomplete error) bool {
	if f := c.filling.Load(); f != nil {
		<-f.Done()
		if _, err := f.Result(); err != nil {
			return false
		}
	}
	log.G(ctx).WithField("id", c.request.ID).WithError(incomplete).Warn("a restored container has all its memory, and not all of its snapshot is in the local store")
	return true
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
