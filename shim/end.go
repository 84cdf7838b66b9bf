package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
)

// errKilled is why a checkpoint ends whose container is killed.
var errKilled = errors.New("the container is being killed")

// errDeleted is why a checkpoint ends whose container has been deleted.
var errDeleted = errors.New("the container is being deleted")

// Kill sends a signal. SIGKILL to a container that is being dumped or restored breaks that off: the container is to end now.
func (s *service) Kill(ctx context.Context, r *taskAPI.KillRequest) (*ptypes.Empty, error) {
	c := s.container(r.ID)
	if c == nil || r.ExecID != "" {
		return s.TTRPCTaskService.Kill(ctx, r)
	}
	if err := c.runtime.Foreign(); err != nil {
		return nil, reply(fmt.Errorf("kill %s: %w", r.ID, err))
	}
	if r.Signal != uint32(unix.SIGKILL) {
		return s.TTRPCTaskService.Kill(ctx, r)
	}
	aborted := c.gate.cancel(errKilled)
	broken := c.breakOff(ctx)
	answer, err := inOrder(ctx, c, r, s.TTRPCTaskService.Kill)
	if broken && errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return &ptypes.Empty{}, nil
	}
	if aborted && c.gpus.nvidia && errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return &ptypes.Empty{}, nil // it was killed already, see endsWhenKilled
	}
	return answer, err
}

// breakOff ends Start of a container that is being restored, and waits until Start has returned. It ends CRIU, and keeps the container from being started afresh. The stock service would only
// wait.
func (c *container) breakOff(ctx context.Context) (broken bool) {
	if !c.starting.underway.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	restoring := c.runtime.Restoring(c.work)
	c.starting.brokenOff.Store(true)
	for c.starting.underway.Load() && ctx.Err() == nil {
		restoring.End()
		broken = true
		time.Sleep(10 * time.Millisecond)
	}
	return broken
}

// Delete waits for a dump to end, breaks a restore off, and drops what is held for the container. Clients take a task that is being restored for one that has
// no process yet, which they may delete.
func (s *service) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	if r.ExecID != "" {
		return inOrder(ctx, s.container(r.ID), r, s.TTRPCTaskService.Delete)
	}
	remove := s.TTRPCTaskService.Delete
	if c := s.container(r.ID); c != nil {
		c.breakOff(ctx)
		if err := c.gate.settle(ctx, errDeleted); err != nil {
			return nil, reply(err)
		}
		if c.runtime.Foreign() != nil {
			remove = s.deleteForeign
		}
	}
	s.deletions.add(r.ID)
	answer, err := inOrder(ctx, s.container(r.ID), r, remove)
	if err != nil {
		s.deletions.drop(r.ID)
		return nil, err
	}
	s.outliveFilling(ctx, s.container(r.ID))
	s.forget(ctx, r.ID)
	return answer, nil
}
