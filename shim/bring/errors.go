package bring

import (
	"context"
	"errors"
	"fmt"

	"github.com/cryo-project/cryo/shim/job"
	"github.com/cryo-project/cryo/shim/restorer"
)

// failed is the error of a restore that did not come about. All is as before.
func (b *bringing) failed(name string, err error) error {
	return job.Failed(b.wanted, "restore", name, "try again; containerd's log tells more", err)
}

// about adds the container's name to an error of the restore process that concerns a container.
func (b *bringing) about(err error) error {
	var of *restorer.ContainerError
	if errors.As(err, &of) {
		return b.failed(of.Name, of.Err)
	}
	return err
}

// interrupted tells whether err says that the caller has cancelled the restore.
func (b *bringing) interrupted(err error) bool {
	return b.wanted.Err() != nil && errors.Is(err, context.Cause(b.wanted))
}

// because gives the restore process's error instead of err if that process has failed: then err only follows from it. An interrupt, and a restore that the shim has
// ended, are not such failures.
func (b *bringing) because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !b.interrupted(cause) && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// incomplete gives the error of a wait for all memory that has failed: the container runs on, or it was ended.
func (b *bringing) incomplete(ctx context.Context, err error) error {
	runsOn := &job.Error{Container: b.Name, Running: true, Restored: true, Err: err}
	if b.interrupted(err) {
		runsOn.Err = fmt.Errorf("wait for the memory of %s: %w", b.Name, err)
		runsOn.Advice = b.Name + " runs on, and its memory still comes"
		return runsOn
	}
	var of *restorer.ContainerError
	if errors.As(err, &of) && of.RunsOn {
		return runsOn
	}
	// The shim is ending the container. The caller hears of it when it has ended.
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearTime)
	defer cancel()
	if ended, err := b.task.Wait(waiting); err == nil {
		<-ended
	}
	return b.about(err)
}
