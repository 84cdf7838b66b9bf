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

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/worker"
)

// A member of a pool (worker.Order.Pool) is restored before it is wanted. It stands frozen before its first instruction, with all its memory and without a restore process, until cryo restore takes it. Only
// then does its program learn what is new, since a member is a clone, whose generation and name are its own.

// standing is a member that stands still.
type standing struct {
	first int // process
	since time.Time
}

// poolFile is in the bundle of a member that stands still, for `delete`, which must not let it run.
const poolFile = "cryo-pool"

// isPooled reports whether the container is restored as a member of a pool.
func (c *container) isPooled() bool {
	return c.annotated != nil && c.annotated.order != nil && c.annotated.order.Pool
}

// markPooled writes into the bundle that the container is a member of a pool.
func (c *container) markPooled() error {
	if c.gpus.record != nil && len(c.gpus.record.Processes) > 0 {
		return failure.New(errdefs.ErrFailedPrecondition, "keep its device memory loaded instead: cryo prewarm --gpu", "a container with GPUs cannot stand in a pool")
	}
	if err := os.WriteFile(filepath.Join(c.bundle.dir, poolFile), nil, 0o600); err != nil {
		return fmt.Errorf("write down that the container stands in a pool: %w", err)
	}
	return nil
}

// stand waits until all memory of a restored member is there. It is frozen by then.
func (s *service) stand(ctx context.Context, c *container, first int) error {
	waiting, stop := whileRuns(ctx, first)
	defer stop()
	if err := c.awaitFilled(waiting); err != nil {
		return errors.Join(notRestored(c.request.ID, err), s.endRestored(ctx, c))
	}
	c.stands = &standing{first: first, since: time.Now()}
	return nil
}

// take lets a member run that stands still, and returns when it does. If the program cannot be told what is new, it stands still as before.
func (s *service) take(ctx context.Context, c *container, id, text string) error {
	began := time.Now()
	order, err := worker.ParseHandout(text)
	if err != nil {
		return err
	}
	if c == nil {
		return notInPool(id)
	}
	in, err := c.life.admit(ctx, toTake, id)
	if err != nil {
		return err
	}
	next := held
	defer func() { in.over(next) }()
	if runc.Doomed(c.stands.first) {
		next = ended
		return errors.Join(notInPool(id), s.endRestored(ctx, c))
	}
	if err := c.tellTaken(order); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := os.Remove(filepath.Join(c.bundle.dir, poolFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take %s: %w", id, err)
	}
	if err := context.Cause(in.ctx); err != nil { // it is being killed
		return fmt.Errorf("take %s: %w", id, err)
	}
	next = ended
	if err := c.thawRestored(ctx); err != nil {
		return errors.Join(notRestored(id, err), s.endRestored(ctx, c))
	}
	c.annotated.since = began
	go s.tellRestored(ctx, c)
	if err := s.runAfterRestore(in.ctx, c, nil); err != nil {
		return err
	}
	next, c.stands = running, nil
	return nil
}

// tellTaken writes for the program of a member what is new, the variables that the user gives it included. If it fails, nothing has changed.
func (c *container) tellTaken(order worker.Handout) (err error) {
	spec, err := c.bundle.spec()
	if err != nil {
		return err
	}
	changes := *c.prepared.Changes
	defer func() {
		if err != nil {
			c.prepared.Changes = &changes
		}
	}()
	if len(order.Env) > 0 {
		old := *spec
		worker.SetEnvironment(spec, order.Env)
		anew := changes
		anew.Environment = worker.Compare(&old, spec).Environment
		c.prepared.Changes = &anew
		if err := c.bundle.setEnvironment(spec); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, c.bundle.setEnvironment(&old))
			}
		}()
	}
	return c.tellChanges(c.stands.first, spec, cmp.Or(order.Name, c.request.ID))
}

// setEnvironment copies the process of another specification, with its environment, into that of the bundle.
func (b bundle) setEnvironment(of *specs.Spec) error {
	return b.changeSpec(func(spec *specs.Spec) error {
		spec.Process = of.Process
		return nil
	})
}

// notInPool returns the error for a container that cannot be taken.
func notInPool(id string) error {
	return failure.New(errdefs.ErrFailedPrecondition, "take another one", "take %s: it is no member of a pool that stands still: it was taken before, or has ended", id).By(worker.TakenRule)
}

// inPool returns the error for a call that would have a member run, or use it, that is not taken yet.
func inPool(id string) error {
	return failure.New(errdefs.ErrFailedPrecondition, "take it with cryo restore, or delete it", "%s is a member of a pool and stands still", id)
}
