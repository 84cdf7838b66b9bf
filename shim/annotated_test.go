package shim

import (
	"context"
	"errors"
	"slices"
	"testing"

	eventsAPI "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/shim/restorer"
)

func TestAskedBy(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		want        asked
		fails       bool
	}{
		"nothing":             {nil, asked{}, false},
		"a restore":           {map[string]string{restorer.Annotation: "r:1"}, asked{ref: "r:1"}, false},
		"that may fail":       {map[string]string{restorer.Annotation: "r:1", restorer.FallbackAnnotation: "start"}, asked{"r:1", true}, false},
		"that must not":       {map[string]string{restorer.Annotation: "r:1", restorer.FallbackAnnotation: "fail"}, asked{"r:1", false}, false},
		"nonsense":            {map[string]string{restorer.Annotation: "r:1", restorer.FallbackAnnotation: "no"}, asked{}, true},
		"a fallback alone":    {map[string]string{restorer.FallbackAnnotation: "start"}, asked{}, false},
		"a pod's sandbox":     {map[string]string{restorer.Annotation: "r:1", kindAnnotation: kindSandbox}, asked{}, false},
		"a pod's container":   {map[string]string{restorer.Annotation: "r:1", kindAnnotation: "container"}, asked{ref: "r:1"}, false},
		"an empty annotation": {map[string]string{restorer.Annotation: ""}, asked{}, false},
	} {
		got, err := askedBy(test.annotations)
		if (err != nil) != test.fails || !test.fails && got != test.want || test.fails && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// published keeps the topics of what it is given to publish.
type published struct{ topics []string }

func (p *published) Publish(_ context.Context, topic string, _ events.Event) error {
	p.topics = append(p.topics, topic)
	return nil
}

func (*published) Close() error { return nil }

// TestMute: of a container that is started afresh, clients hear of one task.
func TestMute(t *testing.T) {
	p := &published{}
	d := &deletions{Publisher: p, ids: map[string]struct{}{}}
	publish := func(topic string, e events.Event) {
		if err := d.Publish(t.Context(), topic, e); err != nil {
			t.Fatal(err)
		}
	}
	life := func(id string) {
		publish("create "+id, &eventsAPI.TaskCreate{ContainerID: id})
		publish("delete "+id, &eventsAPI.TaskDelete{ContainerID: id})
	}
	publish("create a", &eventsAPI.TaskCreate{ContainerID: "a"})
	d.mute("a")
	var err error
	publish("delete a", &eventsAPI.TaskDelete{ContainerID: "a"})
	life("b")
	publish("create a", &eventsAPI.TaskCreate{ContainerID: "a"})
	d.unmute("a", &err)
	publish("start a", &eventsAPI.TaskStart{ContainerID: "a"})
	publish("delete a", &eventsAPI.TaskDelete{ContainerID: "a"})
	life("a")
	d.mute("c")
	err = errors.New("it could not be created")
	d.unmute("c", &err)
	life("c")
	want := []string{"create a", "create b", "delete b", "start a", "delete a", "create a", "delete a", "create c", "delete c"}
	if !slices.Equal(p.topics, want) {
		t.Errorf("published %q", p.topics)
	}
}
