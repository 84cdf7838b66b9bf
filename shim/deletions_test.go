package shim

import (
	"context"
	"testing"
	"time"

	eventsAPI "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
)

// slowPublisher publishes when it is told to.
type slowPublisher struct{ now chan struct{} }

func (p slowPublisher) Publish(context.Context, string, events.Event) error {
	<-p.now
	return nil
}

func (slowPublisher) Close() error { return nil }

func TestShutdownWaitsForDeletions(t *testing.T) {
	now := make(chan struct{})
	d := &deletions{Publisher: slowPublisher{now}, ids: make(map[string]struct{})}
	d.await(t.Context()) // for nothing
	d.add("gone")
	d.add("not gone")
	d.drop("not gone")
	awaited := make(chan struct{})
	go func() {
		d.await(t.Context())
		close(awaited)
	}()
	go func() { _ = d.Publish(t.Context(), "/tasks/delete", &eventsAPI.TaskDelete{ContainerID: "gone"}) }()
	select {
	case <-awaited:
		t.Fatal("did not wait for the event")
	case <-time.After(50 * time.Millisecond):
	}
	close(now)
	<-awaited
	if !d.none() {
		t.Errorf("left: %v", d.ids)
	}
}
