package restore

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
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore/restoretest"
)

// TestCheckDriver: what the driver says is heard while the container is made. It ends that, unless it is about memory that the container itself may have taken.
func TestCheckDriver(t *testing.T) {
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
			a := restoretest.HostWith(t, test.driver, 2, test.free)
			g := restoretest.Saved(1, "nvidia.com/gpu=1")
			p := latePlan(t, a, g)
			ctx, l := p.CheckDriver(t.Context())
			defer p.GPUs.Close()
			err := l.Judge(test.started)
			var misfit *fit.MisfitError
			switch {
			case test.rule == "" && err != test.started:
				t.Errorf("it is %v, though it came to %v", err, test.started)
			case test.rule != "" && (!errors.As(err, &misfit) || !slices.ContainsFunc(misfit.Findings, func(f fit.Finding) bool { return f.Rule == test.rule && f.Hint != "" })):
				t.Errorf("it is %v", err)
			}
			if ended := ctx.Err() != nil; ended != test.ends {
				t.Errorf("it is broken off: %v", ended)
			} else if ended && context.Cause(ctx) != err {
				t.Errorf("it is broken off by %v", context.Cause(ctx))
			}
			if warns := strings.Contains(strings.Join(p.Warnings, " "), "driver"); warns != test.warns {
				t.Errorf("warnings %q", p.Warnings)
			}
			if p.GPUs.Driver == nil || len(p.GPUs.Pairs) != 1 || p.GPUs.Pairs[0].New != restoretest.UUID("b", 1) {
				t.Errorf("decided %+v", p.GPUs)
			}
		})
	}
}

// latePlan is the plan of a snapshot with these GPUs, as far as it goes without the driver.
func latePlan(t *testing.T, a config.Config, g *image.GPU) *Plan {
	t.Helper()
	spec := restoretest.PlainSpec()
	gpus, err := beginGPUs(t.Context(), a.GPU, g, spec, GPUOptions{})
	if err != nil || gpus.asked == nil || !gpus.clear(g) {
		t.Fatalf("%+v, %v", gpus, err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	p := &Plan{GPUs: gpus, compared: image.Config{Version: image.ConfigVersion, Spec: data, GPU: g}}
	if v := fit.Check(p.compared, fit.Target{PathExists: exists, GPUs: gpus.Facts}); slices.ContainsFunc(v.Findings, func(f fit.Finding) bool { return strings.HasPrefix(f.Rule, "gpu-") }) {
		t.Fatalf("before the driver has said anything: %+v", v.Findings)
	}
	return p
}

var errUnwanted = errors.New("nobody wants it any more")

// TestCheckDriverInterrupted: who is not interested any more does not wait for the driver.
func TestCheckDriverInterrupted(t *testing.T) {
	a := restoretest.HelperDoes(t, "exec sleep 100")
	ctx, cancel := context.WithCancelCause(t.Context())
	spec := restoretest.PlainSpec()
	gpus, err := beginGPUs(ctx, a.GPU, restoretest.Saved(1, "nvidia.com/gpu=1"), spec, GPUOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &Plan{GPUs: gpus}
	defer p.GPUs.Close()
	making, l := p.CheckDriver(ctx)
	time.AfterFunc(10*time.Millisecond, func() { cancel(errUnwanted) })
	<-making.Done()
	undone := errors.New("called off")
	if err := l.Judge(undone); err != undone {
		t.Errorf("it is %v", err)
	}
	if err := l.Judge(nil); !errors.Is(err, errUnwanted) {
		t.Errorf("it is %v", err)
	}
}

// TestUnclear: where it takes the driver to say which GPUs the container gets, it is waited for.
func TestUnclear(t *testing.T) {
	for name, c := range map[string]struct {
		gpu  *image.GPU
		gpus GPUOptions
	}{
		"by number":    {restoretest.Saved(2, "nvidia.com/gpu=all"), GPUOptions{Pairs: []GPUPair{{"0", "1"}}}},
		"more":         {restoretest.Saved(1), GPUOptions{Devices: []string{"nvidia.com/gpu=all"}}},
		"fewer":        {restoretest.Saved(2), GPUOptions{Devices: []string{"nvidia.com/gpu=1"}}},
		"no such":      {restoretest.Saved(1), GPUOptions{Devices: []string{"nvidia.com/gpu=7"}}},
		"without node": {restoretest.Saved(1), GPUOptions{}},
		"not used":     {&image.GPU{Devices: restoretest.Saved(1).Devices}, GPUOptions{Devices: []string{"nvidia.com/gpu=1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			gpus, err := beginGPUs(t.Context(), restoretest.Host(t, "580.159.04", 2).GPU, c.gpu, restoretest.PlainSpec(), c.gpus)
			if err != nil {
				t.Fatal(err)
			}
			defer gpus.Close()
			if gpus.clear(c.gpu) {
				t.Errorf("it is clear: %+v", gpus)
			}
		})
	}
}
