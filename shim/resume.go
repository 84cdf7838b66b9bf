package shim

import (
	"context"
	"errors"
	"fmt"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"

	"github.com/cryo-project/cryo/runtime/checkpoint"
)

// Resume waits for a dump to end. A container that was paused for a checkpoint gets back what it had on GPUs. It is not broken off with its client.
func (s *service) Resume(ctx context.Context, r *taskAPI.ResumeRequest) (*ptypes.Empty, error) {
	c := s.container(r.ID)
	if c == nil || !c.gpus.nvidia {
		return inOrder(ctx, c, r, s.resume)
	}
	if answer, done, err := s.resumePlain(ctx, c, r); done {
		return answer, err
	}
	ctx, open, err := c.gate.await(ctx)
	if err != nil {
		return nil, reply(err)
	}
	defer open()
	defer c.endsWhenKilled(ctx)()
	answer, err := s.resume(ctx, r)
	if err != nil || c.parked == nil {
		return answer, err
	}
	if err := s.unpark(ctx, c); err != nil {
		return nil, reply(err)
	}
	return answer, nil
}

// resumePlain is for a container that is not parked: it waits no longer than until a checkpoint does not need it any more.
func (s *service) resumePlain(ctx context.Context, c *container, r *taskAPI.ResumeRequest) (answer *ptypes.Empty, done bool, err error) {
	if err := c.gate.enter(ctx); err != nil {
		return nil, true, reply(err)
	}
	defer c.gate.leave()
	if c.parked != nil {
		return nil, false, nil
	}
	answer, err = s.resume(ctx, r)
	return answer, true, err
}

// resume asks runc twice where it has not done it, since it may have been killed: who checkpoints with stock clients does not look whether it was done.
func (s *service) resume(ctx context.Context, r *taskAPI.ResumeRequest) (*ptypes.Empty, error) {
	ctx = context.WithoutCancel(ctx)
	answer, err := s.TTRPCTaskService.Resume(ctx, r)
	if err != nil && s.is(ctx, r.ID, task.Status_PAUSED) {
		answer, err = s.TTRPCTaskService.Resume(ctx, r)
	}
	return answer, err
}

// unpark loads the GPUs of a container that was thawed. What can be tried again, for instance when there is memory, leaves it paused.
func (s *service) unpark(ctx context.Context, c *container) error {
	id := c.request.ID
	err := c.parked.Load(ctx)
	if err == nil {
		c.parked = nil
		return nil
	}
	var loss *checkpoint.LossError
	if !errors.As(err, &loss) && context.Cause(ctx) != errKilled {
		_, paused := s.TTRPCTaskService.Pause(context.WithoutCancel(ctx), &taskAPI.PauseRequest{ID: id})
		if paused == nil {
			return fmt.Errorf("resume %s: %w; it is paused still", id, err)
		}
		err = errors.Join(err, paused)
	}
	c.parked = nil
	return &checkpoint.LostError{Op: "resume", ID: id, Err: errors.Join(err, s.endRestored(ctx, c))}
}
