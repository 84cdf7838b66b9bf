package node

import (
	"context"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/shim/save"
	"github.com/cryo-project/cryo/shim/worker"
)

// Topics of the shim's events. Source: package shim.
const (
	restoredTopic = "/cryo/restore/restored" // container_id, snapshot, digest, seconds
	fallbackTopic = "/cryo/restore/fallback" // container_id, snapshot, reason, class
	waitingTopic  = "/cryo/restore/waiting"  // container_id, reason
)

// hear hears of containers that are restored, and of checkpoints, until ctx ends. What happens while containerd is away is missed.
func (v *service) hear(ctx context.Context) {
	said := false
	for ctx.Err() == nil {
		err := v.hearOnce(ctx)
		news := v.connected.Swap(false) || !said
		if ctx.Err() != nil {
			return
		}
		if news {
			v.o.Log(Entry{What: "hear of containers", Err: err, Again: againTime.Seconds()})
		}
		said = true
		select {
		case <-ctx.Done():
		case <-time.After(againTime):
		}
	}
}

func (v *service) hearOnce(ctx context.Context) error {
	connected, client, err := v.o.Connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(connected)
	defer cancel()
	messages, errs := client.EventService().Subscribe(ctx, `topic~="^/cryo/(restore|checkpoint)/"`) // of all namespaces
	v.connected.Store(true)
	for {
		select {
		case m := <-messages:
			v.heard(ctx, client, m)
		case err := <-errs:
			return err
		}
	}
}

// heard counts what has become of a container, and tells its pod of restores and cold starts.
func (v *service) heard(ctx context.Context, client *containerd.Client, m *events.Envelope) {
	event, err := typeurl.UnmarshalAny(m.Event)
	fields, is := event.(*structpb.Struct)
	if err != nil || !is {
		return // of another version of cryo
	}
	field := func(name string) string { return fields.Fields[name].GetStringValue() }
	id, ref := field("container_id"), field("snapshot")
	e := Entry{Reference: ref, Container: id}
	switch m.Topic {
	case restoredTopic:
		took := fields.Fields["seconds"].GetNumberValue()
		hit := v.warmer != nil && v.warmer.isPrewarmed(field("digest"))
		v.metrics.restores.WithLabelValues(fmt.Sprint(hit)).Inc()
		v.metrics.seconds.Observe(took)
		if v.warmer != nil {
			wake(v.warmer.used)
		}
		e.What, e.Digest, e.Seconds = "restored", field("digest"), took
		v.tell(ctx, client, m.Namespace, id, podEvent{Reason: "Restored", Message: fmt.Sprintf("restored from %s in %.1f s", ref, took)})
	case fallbackTopic:
		why := field("reason")
		v.metrics.cold.WithLabelValues(field("class")).Inc()
		e.What = "started cold: " + why
		v.tell(ctx, client, m.Namespace, id, podEvent{Warning: true, Reason: "StartedCold", Message: fmt.Sprintf("started cold, not restored from %s: %s", ref, why)})
	case waitingTopic:
		v.metrics.waiting.Inc()
		e.What = "waits for memory: " + field("reason")
		v.tell(ctx, client, m.Namespace, id, podEvent{Warning: true, Reason: "WaitsForMemory", Message: "memory does not come at present: " + field("reason")})
	case save.EndedTopic:
		v.metrics.checkpoint(fields.Fields)
		e.What, e.Digest = "checkpoint: "+field("result"), field("digest")
		if why := field("reason"); why != "" {
			e.What += ": " + why
		}
	default:
		return
	}
	v.o.Log(e)
}

// tell makes an event of the pod that a container is of, if it is of one.
func (v *service) tell(ctx context.Context, client *containerd.Client, namespace, id string, e podEvent) {
	if v.cluster == nil {
		return
	}
	c, err := client.ContainerService().Get(namespaces.WithNamespace(ctx, namespace), id)
	if err != nil || c.Labels[worker.PodName] == "" {
		return // it is gone, or another client's
	}
	e.Pod, e.Namespace, e.UID, e.Container = c.Labels[worker.PodName], c.Labels[worker.PodNamespace], c.Labels[worker.PodUID], c.Labels[worker.InPod]
	v.cluster.post(e)
}
