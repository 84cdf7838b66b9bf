package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
)

// TestLate: what the driver says is heard while the container is made. It ends that, unless it is about memory that the container itself may have taken.
func TestLate(t *testing.T) {
	refused := fmt.Errorf("the shim: %w", errdefs.ErrFailedPrecondition)
	broken := fmt.Errorf("CRIU: %w", errdefs.ErrAborted)
	for name, test := range map[string]struct {
		driver  string
		free    int64
		rule    string // that stands in the way; empty: none
		ends    bool   // what is being done
		started error  // what came of it
		warns   bool
	}{
		"fits":                         {"580.159.04", 100 << 30, "", false, nil, false},
		"fits, and does not work":      {"580.159.04", 100 << 30, "", false, broken, false},
		"another version":              {"580.1", 100 << 30, "", false, nil, true},
		"another branch":               {"570.1", 100 << 30, "gpu-driver", true, nil, false},
		"another branch, and refused":  {"570.1", 100 << 30, "gpu-driver", true, refused, false},
		"another branch and no memory": {"570.1", 0, "gpu-driver", true, broken, false},
		"memory that it has itself":    {"580.159.04", 0, "", false, nil, false},
		"no memory":                    {"580.159.04", 0, "gpu-memory", false, refused, false},
		"no memory, but for CRIU":      {"580.159.04", 0, "", false, broken, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := gpuHostWith(t, test.driver, 2, test.free)
			g := saved(1, "nvidia.com/gpu=1")
			p := latePlan(t, a, g)
			ctx, l := p.late(t.Context())
			defer p.gpus.close()
			err := l.judge(test.started)
			var misfit *fit.MisfitError
			switch {
			case test.rule == "" && err != test.started:
				t.Errorf("it is %v, though it came to %v", err, test.started)
			case test.rule != "" && (!errors.As(err, &misfit) || !slices.ContainsFunc(misfit.Findings, func(f fit.Finding) bool { return f.Rule == test.rule && f.Hint != "" }) || exitCode(err) != exitMisfit):
				t.Errorf("it is %v", err)
			}
			if ended := ctx.Err() != nil; ended != test.ends {
				t.Errorf("it is broken off: %v", ended)
			} else if ended && context.Cause(ctx) != err {
				t.Errorf("it is broken off by %v", context.Cause(ctx))
			}
			if warns := strings.Contains(strings.Join(p.warnings, " "), "driver"); warns != test.warns {
				t.Errorf("warnings %q", p.warnings)
			}
			if p.gpus.driver == nil || len(p.gpus.pairs) != 1 || p.gpus.pairs[0].New != uuid("b", 1) {
				t.Errorf("decided %+v", p.gpus)
			}
		})
	}
}

// latePlan is the plan of a snapshot with these GPUs, as far as it goes without the driver.
func latePlan(t *testing.T, a *app, g *image.GPU) *plan {
	t.Helper()
	spec := plainSpec()
	gpus, err := a.beginGPUs(t.Context(), g, spec, gpuFlags{})
	if err != nil || gpus.asked == nil || !gpus.clear(g) {
		t.Fatalf("%+v, %v", gpus, err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{gpus: gpus, compared: image.Config{Version: image.ConfigVersion, Spec: data, GPU: g}}
	if v := fit.Check(p.compared, fit.Target{PathExists: exists, GPUs: gpus.facts}); slices.ContainsFunc(v.Findings, func(f fit.Finding) bool { return strings.HasPrefix(f.Rule, "gpu-") }) {
		t.Fatalf("before the driver has said anything: %+v", v.Findings)
	}
	return p
}

// TestLateInterrupted: who is not interested any more does not wait for the driver.
func TestLateInterrupted(t *testing.T) {
	a := keeperDoes(t, "exec sleep 100")
	ctx, cancel := context.WithCancelCause(t.Context())
	spec := plainSpec()
	gpus, err := a.beginGPUs(ctx, saved(1, "nvidia.com/gpu=1"), spec, gpuFlags{})
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{gpus: gpus}
	defer p.gpus.close()
	making, l := p.late(ctx)
	time.AfterFunc(10*time.Millisecond, func() { cancel(errInterrupted) })
	<-making.Done()
	undone := errors.New("called off")
	if err := l.judge(undone); err != undone {
		t.Errorf("it is %v", err)
	}
	if err := l.judge(nil); !errors.Is(err, errInterrupted) {
		t.Errorf("it is %v", err)
	}
}

// TestUnclear: where it takes the driver to say which GPUs the container gets, it is waited for.
func TestUnclear(t *testing.T) {
	for name, c := range map[string]struct {
		gpu   *image.GPU
		flags gpuFlags
	}{
		"by number":    {saved(2, "nvidia.com/gpu=all"), gpuFlags{pairs: []gpuPair{{"0", "1"}}}},
		"more":         {saved(1), gpuFlags{devices: []string{"nvidia.com/gpu=all"}}},
		"fewer":        {saved(2), gpuFlags{devices: []string{"nvidia.com/gpu=1"}}},
		"no such":      {saved(1), gpuFlags{devices: []string{"nvidia.com/gpu=7"}}},
		"without node": {saved(1), gpuFlags{}},
		"not used":     {&image.GPU{Devices: saved(1).Devices}, gpuFlags{devices: []string{"nvidia.com/gpu=1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			gpus, err := gpuHost(t, "580.159.04", 2).beginGPUs(t.Context(), c.gpu, plainSpec(), c.flags)
			if err != nil {
				t.Fatal(err)
			}
			defer gpus.close()
			if gpus.clear(c.gpu) {
				t.Errorf("it is clear: %+v", gpus)
			}
		})
	}
}
