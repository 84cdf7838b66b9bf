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
	"github.com/containerd/log"
)

// deletionTime bounds how long the shim stays for the sake of an event.
const deletionTime = 2 * time.Second

// deletions are the containers whose deletion subscribers do not know of yet. The stock service publishes events behind its
// callers' backs, and its Shutdown, which follows the last Delete at once, ends the process with what is not published.
type deletions struct {
	shim.Publisher

	mu   sync.Mutex
	ids  map[string]struct{} // guarded by mu
	held map[string]*held    // by container; guarded by mu
}

// held are events of a container's task that are published later, or never.
type held struct {
	events   []publication
	exited   chan struct{} // closed when the end of the task's first process is among them
	ended    bool          // exited is closed
	replaced bool          // the stock service makes another task; the event of its creation is the last that is never published
}

// publication is an event, as the stock service has published it.
type publication struct {
	ctx   context.Context
	topic string
	event events.Event
}

// hold keeps back the events of a container's task until release is called. After replace, it ends with the event of another task's creation, and the events before are dropped. exited is closed
// when the stock service has published the end of the task's first process.
func (d *deletions) hold(id string) (exited <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil {
		d.held = make(map[string]*held)
	}
	h := &held{exited: make(chan struct{})}
	d.held[id] = h
	return h.exited
}

// replace says that the stock service makes another task of the container. The event of its creation drops those that are held: subscribers see only one task.
func (d *deletions) replace(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.held[id]; h != nil {
		h.replaced = true
	}
}

// release publishes what was kept back.
func (d *deletions) release(id string) {
	for {
		d.mu.Lock()
		h := d.held[id]
		if h == nil || len(h.events) == 0 {
			delete(d.held, id)
			d.mu.Unlock()
			return
		}
		first := h.events[0]
		h.events = h.events[1:]
		d.mu.Unlock()
		if err := d.publish(first); err != nil {
			log.G(first.ctx).WithError(err).WithField("topic", first.topic).Error("publish an event")
		}
	}
}

// keep keeps an event back, if it is one of a task whose events are held.
func (d *deletions) keep(p publication) bool {
	of, ok := p.event.(interface{ GetContainerID() string })
	if !ok {
		return false
	}
	id := of.GetContainerID()
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.held[id]
	if h == nil {
		return false
	}
	switch e := p.event.(type) {
	case *eventsAPI.TaskExit:
		if e.ID == id && !h.ended {
			h.ended = true
			close(h.exited)
		}
	case *eventsAPI.TaskCreate:
		if e.Checkpoint != "" { // it comes late: that of the task that is restored
			return false
		}
		if h.replaced {
			delete(d.held, id)
			return true
		}
	}
	h.events = append(h.events, p)
	return true
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
	p := publication{ctx, topic, event}
	if d.keep(p) {
		return nil
	}
	return d.publish(p)
}

func (d *deletions) publish(p publication) error {
	err := d.Publisher.Publish(p.ctx, p.topic, p.event)
	if deleted, ok := p.event.(*eventsAPI.TaskDelete); ok {
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
