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

// Resume is not broken off with its client. A container that is parked gets back what it had on GPUs.
func (s *service) Resume(ctx context.Context, r *taskAPI.ResumeRequest) (*ptypes.Empty, error) {
	c := s.container(r.ID)
	if c == nil {
		return s.resume(ctx, r)
	}
	in, err := c.life.admit(ctx, toResume, r.ID)
	if err != nil {
		return nil, reply(err)
	}
	if !in.alone {
		defer in.leave()
		return s.resume(ctx, r)
	}
	next := parked
	defer func() { in.over(next) }()
	ctx = in.ctx
	defer c.endsWhenKilled(ctx)()
	warn(ctx, "stop processes whose device memory is in host memory", c.saved.Stop(ctx))
	answer, err := s.resume(ctx, r)
	if err != nil {
		c.saved.Release()
		return nil, err
	}
	if next, err = s.unpark(ctx, c); err != nil {
		return nil, reply(err)
	}
	return answer, nil
}

// resume asks runc twice where it has not done it, since it may have been killed: stock clients that checkpoint do not look whether it was done.
func (s *service) resume(ctx context.Context, r *taskAPI.ResumeRequest) (*ptypes.Empty, error) {
	ctx = context.WithoutCancel(ctx)
	answer, err := s.TTRPCTaskService.Resume(ctx, r)
	if err != nil && s.is(ctx, r.ID, task.Status_PAUSED) {
		answer, err = s.TTRPCTaskService.Resume(ctx, r)
	}
	return answer, err
}

// unpark loads the GPUs of a container that was thawed, and returns the phase that follows. After what can be tried again, for instance when there is memory, it stays parked.
func (s *service) unpark(ctx context.Context, c *container) (phase, error) {
	id := c.request.ID
	err := c.saved.Load(ctx)
	if err == nil {
		c.saved = nil
		return running, nil
	}
	var loss *checkpoint.LossError
	if !errors.As(err, &loss) && context.Cause(ctx) != errKilled {
		_, paused := s.TTRPCTaskService.Pause(context.WithoutCancel(ctx), &taskAPI.PauseRequest{ID: id})
		if paused == nil {
			return parked, fmt.Errorf("resume %s: %w; it is paused still", id, err)
		}
		err = errors.Join(err, paused)
	}
	c.saved = nil
	return ended, checkpoint.Lost("resume", id, errors.Join(err, s.endRestored(ctx, c)))
}
