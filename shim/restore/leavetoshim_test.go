package restore

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/integration/hosttest"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
)

// TestLeaveToShim: the driver is not asked where it is clear which GPUs the container gets, and says afterwards by which rule the shim has refused it.
func TestLeaveToShim(t *testing.T) {
	for name, test := range map[string]struct {
		host func(*testing.T) config.Config
		rule string // empty: the driver knows no reason
	}{
		"fits":            {func(t *testing.T) config.Config { return hosttest.HostWith(t, "580.159.04", 2, 100<<30) }, ""},
		"another version": {func(t *testing.T) config.Config { return hosttest.HostWith(t, "580.1", 2, 100<<30) }, ""},
		"another branch":  {func(t *testing.T) config.Config { return hosttest.HostWith(t, "570.1", 2, 100<<30) }, "gpu-driver"},
		"no memory":       {func(t *testing.T) config.Config { return hosttest.HostWith(t, "580.159.04", 2, 0) }, "gpu-memory"},
		"no driver": {func(t *testing.T) config.Config {
			return hosttest.HelperSays(t, 1, `{"driver":{"fault":"absent","message":"no libcuda.so.1"}}`)
		}, "gpu-missing"},
	} {
		t.Run(name, func(t *testing.T) {
			c := test.host(t)
			g, spec := hosttest.Saved(1, "nvidia.com/gpu=1"), hosttest.PlainSpec()
			gpus, err := PlanGPUs(t.Context(), c.GPU, g, spec, GPUOptions{LeaveToShim: true})
			if err != nil || !gpus.Facts.Unasked || gpus.Facts.Driver != "" {
				t.Fatalf("%+v, %v", gpus, err)
			}
			data, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			p := &Plan{GPUs: gpus, compared: image.Config{Version: image.ConfigVersion, Spec: data, GPU: g}}
			if v := host.CheckFit(p.compared, host.FitTarget{PathExists: exists, GPUs: gpus.Facts}); !v.Fits() && slices.ContainsFunc(v.Findings, func(f host.FitFinding) bool { return f.Rule == test.rule }) {
				t.Errorf("before the driver is asked: %+v", v.Findings)
			}
			err = p.Misfit(t.Context())
			if test.rule == "" && err != nil || test.rule != "" && (!errors.Is(err, failure.ErrMisfit) || failure.Class(err) != test.rule || failure.Hint(err) == "") {
				t.Errorf("the shim has refused it, and the driver says %v", err)
			}
			if again := p.Misfit(t.Context()); again != nil {
				t.Errorf("asked again, it says %v", again)
			}
		})
	}
}

// TestAskDriver: where it takes the driver to say which GPUs the container gets, it is asked, whatever is left to the shim.
func TestAskDriver(t *testing.T) {
	for name, c := range map[string]struct {
		gpu  *image.GPU
		gpus GPUOptions
	}{
		"by number":    {hosttest.Saved(2, "nvidia.com/gpu=all"), GPUOptions{Pairs: []GPUPair{{"0", "1"}}}},
		"more":         {hosttest.Saved(1), GPUOptions{Devices: []string{"nvidia.com/gpu=all"}}},
		"fewer":        {hosttest.Saved(2), GPUOptions{Devices: []string{"nvidia.com/gpu=1"}}},
		"no such":      {hosttest.Saved(1), GPUOptions{Devices: []string{"nvidia.com/gpu=7"}}},
		"without node": {hosttest.Saved(1), GPUOptions{}},
		"not used":     {&image.GPU{Devices: hosttest.Saved(1).Devices}, GPUOptions{Devices: []string{"nvidia.com/gpu=1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c.gpus.LeaveToShim = true
			gpus, err := PlanGPUs(t.Context(), hosttest.Host(t, "580.159.04", 2).GPU, c.gpu, hosttest.PlainSpec(), c.gpus)
			if err != nil || gpus.Facts.Unasked {
				t.Errorf("it is left to the shim: %+v, %v", gpus, err)
			}
		})
	}
}
