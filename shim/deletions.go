package shim

import (
	"context"
	"sync"
	"time"

	eventsAPI "github.com/containerd/containerd/api/events"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/events"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/containerd/v2/pkg/shim"
)

// deletionTime bounds how long the shim stays for the sake of an event.
const deletionTime = 2 * time.Second

// deletions are the containers whose deletion subscribers do not know of yet. The stock service publishes events behind its
// callers' backs, and its Shutdown, which follows the last Delete at once, ends the process with what is not published.
type deletions struct {
	shim.Publisher

	mu  sync.Mutex
	ids map[string]struct{} // guarded by mu
}

func (d *deletions) add(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids[id] = struct{}{}
}

func (d *deletions) drop(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ids, id)
}

func (d *deletions) none() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ids) == 0
}

// Publish implements [events.Publisher].
func (d *deletions) Publish(ctx context.Context, topic string, event events.Event) error {
	err := d.Publisher.Publish(ctx, topic, event)
	if deleted, ok := event.(*eventsAPI.TaskDelete); ok {
		d.drop(deleted.ContainerID)
	}
	return err
}

// await waits until all have been published.
func (d *deletions) await(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deletionTime)
	defer cancel()
	for !d.none() && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}

// Shutdown ends the shim if it has no container left, and all have been told.
func (s *service) Shutdown(ctx context.Context, r *taskAPI.ShutdownRequest) (*ptypes.Empty, error) {
	s.deletions.await(ctx)
	return s.TTRPCTaskService.Shutdown(ctx, r)
}
