package shim

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/shim/worker"
)

func TestWhenReady(t *testing.T) {
	with := func(pairs ...string) map[string]string {
		all := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		return all
	}
	to, when, in := worker.CheckpointAnnotation, worker.WhenAnnotation, worker.ReadyTimeoutAnnotation
	for name, test := range map[string]struct {
		annotations map[string]string
		want        time.Duration
		wrong       bool
	}{
		"none":              {nil, 0, false},
		"a destination":     {with(to, "r/x"), 0, false},
		"ready":             {with(to, "r/x", when, "ready"), worker.ReadyTimeout, false},
		"ready, in time":    {with(to, "r/x", when, "ready", in, "90s"), 90 * time.Second, false},
		"a pod's sandbox":   {with(to, "r/x", when, "ready", kindAnnotation, kindSandbox), 0, false},
		"no destination":    {with(when, "ready"), 0, true},
		"another word":      {with(to, "r/x", when, "now"), 0, true},
		"no time":           {with(to, "r/x", when, "ready", in, "soon"), 0, true},
		"less than no time": {with(to, "r/x", when, "ready", in, "-1s"), 0, true},
	} {
		got, err := whenReady(test.annotations)
		if got != test.want || test.wrong != errdefs.IsInvalidArgument(err) || !test.wrong && err != nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}
