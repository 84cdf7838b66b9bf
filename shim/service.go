package shim

import (
	"context"
	"errors"
	"sync"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/oom"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/ttrpc"

	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/worker"
)

// service is the task service of all containers of one shim.
type service struct {
	taskAPI.TTRPCTaskService // the stock one

	config    config.Config
	oom       func() (oom.Watcher, error) // see watchOOM
	deletions *deletions

	mu         sync.Mutex
	containers map[string]*container // guarded by mu
}

var _ shim.TTRPCService = (*service)(nil)

func newService(ctx context.Context, stock taskAPI.TTRPCTaskService, publisher *deletions, c config.Config) *service {
	return &service{
		TTRPCTaskService: stock,
		config:           c,
		oom:              watchOOM(ctx, publisher),
		deletions:        publisher,
		containers:       make(map[string]*container),
	}
}

// RegisterTTRPC implements [shim.TTRPCService].
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	taskAPI.RegisterTTRPCTaskService(server, s)
	return nil
}

// container returns what is known of a container; nil if it is not one of this shim's.
func (s *service) container(id string) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

// inOrder has the stock service answer a call when the container's phase lets it pass.
func inOrder[Q any, A any](ctx context.Context, c *container, k call, request Q, stock func(context.Context, Q) (A, error)) (answer A, err error) {
	if c != nil {
		in, err := c.life.admit(ctx, k, c.request.ID)
		if err != nil {
			return answer, reply(err)
		}
		defer in.leave()
	}
	return stock(ctx, request)
}

// Pause is not broken off with its client, and thaws what it has frozen where it fails: the container would stand still, and be said to run.
func (s *service) Pause(ctx context.Context, r *taskAPI.PauseRequest) (*ptypes.Empty, error) {
	c := s.container(r.ID)
	return inOrder(ctx, c, toPause, r, func(ctx context.Context, r *taskAPI.PauseRequest) (*ptypes.Empty, error) {
		ctx = context.WithoutCancel(ctx)
		answer, err := s.TTRPCTaskService.Pause(ctx, r)
		if err != nil && c != nil && s.is(ctx, r.ID, task.Status_RUNNING) {
			err = errors.Join(err, c.runtime.Thaw(ctx))
		}
		return answer, err
	})
}

// is reports whether the stock service says so of a container.
func (s *service) is(ctx context.Context, id string, status task.Status) bool {
	state, err := s.TTRPCTaskService.State(ctx, &taskAPI.StateRequest{ID: id})
	return err == nil && state.Status == status
}

// Update waits until the container's phase lets it pass. With [worker.HandoutAnnotation] it takes a member out of its pool, and changes nothing else.
func (s *service) Update(ctx context.Context, r *taskAPI.UpdateTaskRequest) (*ptypes.Empty, error) {
	c := s.container(r.ID)
	if text, takes := r.Annotations[worker.HandoutAnnotation]; takes {
		return &ptypes.Empty{}, reply(s.take(ctx, c, r.ID, text))
	}
	return inOrder(ctx, c, toUse, r, s.TTRPCTaskService.Update)
}
