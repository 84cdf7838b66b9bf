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

	mu    sync.Mutex
	ids   map[string]struct{} // guarded by mu
	muted map[string]*muted   // by container; guarded by mu
}

// muted are events that subscribers are not to see: one of each, if the stock service publishes it.
type muted struct{ deleted, created bool }

// mute keeps back the next deletion and creation of a container's task, of which the stock service makes another one.
func (d *deletions) mute(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.muted == nil {
		d.muted = make(map[string]*muted)
	}
	d.muted[id] = &muted{deleted: true, created: true}
}

// unmute ends that where the other task has not come about. Else both events have been published, or will be.
func (d *deletions) unmute(id string, err *error) {
	if *err == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.muted, id)
}

// mutes tells whether an event is kept back.
func (d *deletions) mutes(event events.Event) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	take := func(id string, which func(*muted) *bool) bool {
		m := d.muted[id]
		if m == nil || !*which(m) {
			return false
		}
		*which(m) = false
		if !m.deleted && !m.created {
			delete(d.muted, id)
		}
		return true
	}
	switch e := event.(type) {
	case *eventsAPI.TaskDelete:
		return take(e.ContainerID, func(m *muted) *bool { return &m.deleted })
	case *eventsAPI.TaskCreate:
		return take(e.ContainerID, func(m *muted) *bool { return &m.created })
	}
	return false
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
	if d.mutes(event) {
		return nil
	}
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
