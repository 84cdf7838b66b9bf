package shim

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/shim/worker"
)

func TestAskedBy(t *testing.T) {
	const image = "r.example.com/prod/app:1"
	allows := func(name string) bool { return name == image }
	pod := func(more ...string) map[string]string {
		all := map[string]string{kindAnnotation: kindContainer, nameAnnotation: "app", imageAnnotation: image}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	const asks, again = worker.Annotation, restartsAnnotation
	for name, test := range map[string]struct {
		annotations map[string]string
		want        restoreWish
		fails       bool
	}{
		"nothing":             {nil, restoreWish{}, false},
		"a restore":           {map[string]string{asks: "r:1"}, restoreWish{ref: "r:1"}, false},
		"that may fail":       {map[string]string{asks: "r:1", worker.FallbackAnnotation: "start"}, restoreWish{ref: "r:1", start: true}, false},
		"that must not":       {map[string]string{asks: "r:1", worker.FallbackAnnotation: "fail"}, restoreWish{ref: "r:1"}, false},
		"nonsense":            {map[string]string{asks: "r:1", worker.FallbackAnnotation: "no"}, restoreWish{}, true},
		"a fallback alone":    {map[string]string{worker.FallbackAnnotation: "start"}, restoreWish{}, false},
		"a pod's sandbox":     {pod(asks, "r:1", kindAnnotation, kindSandbox), restoreWish{}, false},
		"an empty annotation": {map[string]string{asks: ""}, restoreWish{}, false},

		"a pod's container":           {pod(asks, "r:1"), restoreWish{ref: "r:1"}, false},
		"by its name":                 {pod(asks+".app", "r:2"), restoreWish{ref: "r:2"}, false},
		"both":                        {pod(asks, "r:1", asks+".app", "r:2"), restoreWish{ref: "r:2"}, false},
		"another's":                   {pod(imageAnnotation, "x", asks+".other", "r:2"), restoreWish{}, false},
		"a name that means more":      {pod(nameAnnotation, "fallback", asks, "r:1", worker.FallbackAnnotation, "start"), restoreWish{ref: "r:1", start: true}, false},
		"a signal's":                  {pod(nameAnnotation, "signal", imageAnnotation, "x", worker.SignalAnnotation, "SIGUSR1"), restoreWish{}, false},
		"by its image":                {pod(), restoreWish{image: image, start: true}, false},
		"by its image or not at all":  {pod(worker.FallbackAnnotation, "fail"), restoreWish{image: image}, false},
		"another image":               {pod(imageAnnotation, "r.example.com/other:1"), restoreWish{}, false},
		"an image without a pod":      {map[string]string{imageAnnotation: image}, restoreWish{}, false},
		"a sandbox with an image":     {pod(kindAnnotation, kindSandbox), restoreWish{}, false},
		"a signal":                    {pod(worker.SignalAnnotation, "SIGUSR1"), restoreWish{image: image, start: true, signal: unix.SIGUSR1}, false},
		"no signal":                   {pod(worker.SignalAnnotation, "USR1"), restoreWish{}, true},
		"a signal that nobody hears":  {pod(worker.SignalAnnotation, "SIGKILL"), restoreWish{}, true},
		"a move":                      {pod(worker.AsAnnotation, "move"), restoreWish{image: image, start: true}, false},
		"neither a move nor a clone":  {pod(worker.AsAnnotation, "copy"), restoreWish{}, true},
		"one that is called as":       {pod(nameAnnotation, "as", imageAnnotation, "x", worker.AsAnnotation, "move"), restoreWish{}, false},
		"for the first time":          {pod(again, "0"), restoreWish{image: image, start: true}, false},
		"for the second time":         {pod(again, "1"), restoreWish{}, false},
		"annotated, a second time":    {pod(again, "1", asks, "r:1"), restoreWish{ref: "r:1", again: true}, false},
		"explicitly cold":             {pod(again, "2", asks, "r:1", worker.RestartAnnotation, "cold"), restoreWish{ref: "r:1", again: true}, false},
		"restored each time":          {pod(again, "2", worker.RestartAnnotation, "restore"), restoreWish{image: image, start: true}, false},
		"nonsense about the restart":  {pod(worker.RestartAnnotation, "warm"), restoreWish{}, true},
		"nonsense that nobody asks":   {map[string]string{worker.RestartAnnotation: "warm", worker.SignalAnnotation: "x"}, restoreWish{}, false},
		"annotated in its own words":  {pod(asks, "r:1", worker.FallbackAnnotation, "start"), restoreWish{ref: "r:1", start: true}, false},
		"a member of a group":         {pod(worker.GroupAnnotation, "g"), restoreWish{group: "g"}, false},
		"a member, a second time":     {pod(worker.GroupAnnotation, "g", again, "1"), restoreWish{group: "g", ran: true}, false},
		"a member with a signal":      {pod(worker.GroupAnnotation, "g", worker.SignalAnnotation, "SIGUSR1"), restoreWish{group: "g", signal: unix.SIGUSR1}, false},
		"a member by itself too":      {pod(worker.GroupAnnotation, "g", asks, "r:1"), restoreWish{}, true},
		"a member that starts":        {pod(worker.GroupAnnotation, "g", worker.FallbackAnnotation, "start"), restoreWish{}, true},
		"a member again and again":    {pod(worker.GroupAnnotation, "g", worker.RestartAnnotation, "restore"), restoreWish{}, true},
		"a sandbox of a member":       {pod(kindAnnotation, kindSandbox, worker.GroupAnnotation, "g"), restoreWish{}, false},
		"the name wins for its image": {pod(asks+".app", "r:2", again, "1", worker.RestartAnnotation, "restore"), restoreWish{ref: "r:2"}, false},
	} {
		got, err := askedBy(test.annotations, allows)
		if (err != nil) != test.fails || !test.fails && got != test.want || test.fails && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if want := got.name() != "" && !got.again; err == nil && got.restores() != want {
			t.Errorf("%s: restores %v", name, got.restores())
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

// TestFallbackEvent: who listens hears why a container was started, also where a name in the reason is no UTF-8.
func TestFallbackEvent(t *testing.T) {
	p := &published{}
	s := &service{deletions: &deletions{Publisher: p, ids: map[string]struct{}{}}}
	s.publishFallback(t.Context(), "a", restoreWish{ref: "r:1"}, errors.New("open /\xff: gone"))
	if !slices.Equal(p.topics, []string{fallbackTopic}) {
		t.Errorf("published %q", p.topics)
	}
}
