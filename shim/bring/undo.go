package bring

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// undoTime bounds the undoing of an operation.
const undoTime = 60 * time.Second

// undo is a stack of what must be undone if an operation fails. Each step runs although ctx is cancelled.
type undo struct{ steps []step }

type step struct {
	what string
	do   func(context.Context) error
}

// add puts a step on top.
func (u *undo) add(what string, do func(context.Context) error) {
	u.steps = append(u.steps, step{what, do})
}

// release forgets the steps: the operation has succeeded.
func (u *undo) release() { u.steps = nil }

// run undoes, last step first, and returns what could not be undone.
func (u *undo) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var failed []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i].do(ctx); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", u.steps[i].what, err))
		}
	}
	u.steps = nil
	return errors.Join(failed...)
}
