package shim

import (
	"context"
	"fmt"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/runc"
)

// Kill sends a signal. SIGKILL to a container that is being dumped or restored breaks that off: the container is to end now.
func (s *service) Kill(ctx context.Context, r *taskAPI.KillRequest) (*ptypes.Empty, error) {
	c := s.container(r.ID)
	if c == nil || r.ExecID != "" {
		return s.TTRPCTaskService.Kill(ctx, r)
	}
	if err := c.runtime.Foreign(); err != nil {
		return nil, reply(fmt.Errorf("kill %s: %w", r.ID, err))
	}
	if err := c.bundle.renew(); err != nil {
		return nil, reply(fmt.Errorf("kill %s: %w", r.ID, err))
	}
	if r.Signal != uint32(unix.SIGKILL) {
		return s.TTRPCTaskService.Kill(ctx, r)
	}
	in, err := c.life.admit(ctx, toKill, r.ID)
	if err != nil {
		return nil, reply(err)
	}
	defer in.leave()
	answer, err := s.TTRPCTaskService.Kill(ctx, r)
	if in.broken && errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return &ptypes.Empty{}, nil // what was broken off has ended it
	}
	return answer, err
}

// Delete drops what is held for the container. Clients take a task that is being restored for one that has no process yet, which they may delete.
func (s *service) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	if r.ExecID != "" {
		return inOrder(ctx, s.container(r.ID), toUse, r, s.TTRPCTaskService.Delete)
	}
	stock, c := s.TTRPCTaskService.Delete, s.container(r.ID)
	if c != nil {
		if err := c.bundle.renew(); err != nil {
			return nil, reply(fmt.Errorf("delete %s: %w", r.ID, err))
		}
		in, err := c.life.admit(ctx, toRemove, r.ID)
		if err != nil {
			return nil, reply(err)
		}
		defer in.leave()
		if c.stands != nil && runc.Ended(c.stands.first) { // runc goes by the cgroup, and takes it for paused
			warn(ctx, "thaw the cgroup of a member of a pool that has ended", c.thawRestored(ctx))
		}
		if c.runtime.Foreign() != nil {
			stock = s.deleteForeign
		}
	}
	s.deletions.add(r.ID)
	answer, err := stock(ctx, r)
	if err != nil {
		s.deletions.drop(r.ID)
		return nil, err
	}
	s.outliveFilling(ctx, c)
	s.forget(ctx, r.ID)
	return answer, nil
}
