package shim

import (
	"context"
	"path/filepath"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/typeurl/v2"
)

// State answers at once also while a restore runs, when the stock service holds its lock.
func (s *service) State(ctx context.Context, r *taskAPI.StateRequest) (*taskAPI.StateResponse, error) {
	c := s.container(r.ID)
	if c == nil || r.ExecID != "" {
		return s.TTRPCTaskService.State(ctx, r)
	}
	q := c.request
	answer := &taskAPI.StateResponse{
		ID:       q.ID,
		Bundle:   q.Bundle,
		Status:   task.Status_CREATED,
		Stdin:    q.Stdin,
		Stdout:   q.Stdout,
		Stderr:   q.Stderr,
		Terminal: q.Terminal,
	}
	if p := c.life.now(); p != restoring && p != loading {
		var err error
		if answer, err = s.TTRPCTaskService.State(ctx, r); err != nil {
			return nil, err
		}
	}
	if answer.Status == task.Status_RUNNING && c.life.now() == held {
		answer.Status = task.Status_PAUSED // the stock service has not frozen it
	}
	if c.keepsOutput() { // a client that attaches opens what State names
		answer.Stdout, answer.Stderr = filepath.Join(c.bundle.dir, streamOut), ""
	}
	return answer, nil
}

// Stats of a restored container come from the cgroup that was found after the restore.
func (s *service) Stats(ctx context.Context, r *taskAPI.StatsRequest) (*taskAPI.StatsResponse, error) {
	c := s.container(r.ID)
	if c == nil {
		return s.TTRPCTaskService.Stats(ctx, r)
	}
	var stats any
	var err error
	switch cgroup := c.cgroup.Load().(type) {
	case cgroup1.Cgroup:
		stats, err = cgroup.Stat(cgroup1.IgnoreNotExist)
	case *cgroup2.Manager:
		stats, err = cgroup.Stat()
	default:
		return s.TTRPCTaskService.Stats(ctx, r)
	}
	if err != nil {
		return nil, reply(err)
	}
	data, err := typeurl.MarshalAnyToProto(stats)
	if err != nil {
		return nil, reply(err)
	}
	return &taskAPI.StatsResponse{Stats: data}, nil
}
