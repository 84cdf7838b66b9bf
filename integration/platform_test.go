package integration

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// platformAnswer is what integration/platform prints.
type platformAnswer struct {
	Result     json.RawMessage
	Activities []string
	Error      *struct {
		Message, Rule, Hint, Kind string
		Canceled                  bool
	}
}

// platform has a program that uses package shim/cryo do something on a host.
func platform(t *testing.T, h *lab.Host, args ...string) (a platformAnswer) {
	t.Helper()
	r := must(t, h.Run(t.Context(), append([]string{"platform"}, args...)...))
	if r.Stderr != "" {
		t.Errorf("the package prints %q", r.Stderr)
	}
	if err := json.Unmarshal([]byte(r.Stdout), &a); err != nil {
		t.Fatalf("%v: %s", err, r.Stdout)
	}
	return a
}

// result reads what a platform has got, and ends the test if that is an error.
func (a platformAnswer) result(t *testing.T, into any) {
	t.Helper()
	if a.Error != nil {
		t.Fatalf("%+v", *a.Error)
	}
	if err := json.Unmarshal(a.Result, into); err != nil {
		t.Fatalf("%v: %s", err, a.Result)
	}
}

// TestPlatform has a platform take a snapshot, and restore it on another host by containerd's client.
func TestPlatform(t *testing.T) {
	a, _ := pair(t)
	b := annotationHost(t, "platform", shared.registry.Address)
	id, ref := name(t), shared.registry.Reference("platform/app:1")
	workload := []string{"workload", "count", "--memory", "32"}
	start(t, a, id, nil, workload...)

	stopped := platform(t, a, "checkpoint", "--cancel", "dump", id, ref)
	if e := stopped.Error; e == nil || !e.Canceled || string(stopped.Result) != "null" && stopped.Result != nil {
		t.Errorf("a cancelled checkpoint came to %s, %+v", stopped.Result, e)
	}
	before := await(t, a, id)

	var taken struct {
		Reference, Digest, Container string
		Running                      bool
		Memory, Frozen               int64
		Pushed                       *struct{ Index string }
	}
	done := platform(t, a, "checkpoint", id, ref)
	done.result(t, &taken)
	if taken.Reference != ref || taken.Container != id || !taken.Running || taken.Frozen <= 0 || taken.Pushed == nil || taken.Memory < 32<<20 {
		t.Errorf("it has taken %+v", taken)
	}
	for _, activity := range []string{"dump", "push"} {
		if !slices.Contains(done.Activities, activity) {
			t.Errorf("there was progress of %v, and not of %s", done.Activities, activity)
		}
	}
	await(t, a, id)

	var seen struct {
		Digest, Container, Image string
		InRegistry, Fits         bool
		Asks                     []struct{ Rule string }
		Config                   struct{ Container struct{ ID string } }
	}
	platform(t, b, "inspect", ref).result(t, &seen)
	if seen.Digest != taken.Digest || seen.Container != id || seen.Config.Container.ID != id || !seen.InRegistry || !seen.Fits || len(seen.Asks) > 0 || seen.Image != lab.ImageName {
		t.Errorf("it sees %+v", seen)
	}
	var ready struct{ Digest, Image string }
	platform(t, b, "prewarm", ref).result(t, &ready)
	if ready.Digest != taken.Digest || ready.Image != lab.ImageName {
		t.Errorf("it has prewarmed %+v", ready)
	}

	cleanup(t, b, id)
	refused := platform(t, b, append([]string{"restore", "--mount", "/more", id, ref, ready.Image}, workload...)...)
	if e := refused.Error; e == nil || e.Rule != "mounts" || e.Hint == "" || !strings.Contains(e.Kind, "failed precondition") {
		t.Errorf("another mount: %+v", e)
	}
	var pid int
	platform(t, b, append([]string{"restore", id, ref, ready.Image}, workload...)...).result(t, &pid)
	after := await(t, b, id)
	if pid <= 0 || after.Life != before.Life || after.Count < before.Count || after.State["sha256"] != before.State["sha256"] {
		t.Errorf("process %d is %+v, and was %+v", pid, after, before)
	}
}
