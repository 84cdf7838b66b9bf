package restore

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/integration/hosttest"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
)

// pairs are those of texts that are right.
func pairs(texts ...string) (all []GPUPair) {
	for _, text := range texts {
		p, err := ParseGPUPair(text)
		if err != nil {
			panic(err)
		}
		all = append(all, p)
	}
	return all
}

func TestPlanGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		gpu  *image.GPU
		gpus GPUOptions
		want []int // GPUs of this host in the places of the snapshot's
	}{
		"as it was":         {hosttest.Saved(1, "nvidia.com/gpu=1"), GPUOptions{}, []int{1}},
		"another":           {hosttest.Saved(1, "nvidia.com/gpu=1"), GPUOptions{Devices: []string{"nvidia.com/gpu=0"}}, []int{0}},
		"both":              {hosttest.Saved(2, "nvidia.com/gpu=0", "nvidia.com/gpu=1"), GPUOptions{}, []int{0, 1}},
		"all":               {hosttest.Saved(2, "nvidia.com/gpu=0"), GPUOptions{Devices: []string{"nvidia.com/gpu=all"}}, []int{0, 1}},
		"the other way":     {hosttest.Saved(2, "nvidia.com/gpu=all"), GPUOptions{Pairs: pairs("0=1")}, []int{1, 0}},
		"by UUIDs":          {hosttest.Saved(2, "nvidia.com/gpu=all"), GPUOptions{Pairs: pairs(hosttest.UUID("a", 1)+"="+hosttest.UUID("b", 0), "0=1")}, []int{1, 0}},
		"more than it had":  {hosttest.Saved(1), GPUOptions{Devices: []string{"nvidia.com/gpu=all"}, Pairs: pairs("0=1")}, []int{1, 0}},
		"fewer than it had": {hosttest.Saved(2), GPUOptions{Devices: []string{"nvidia.com/gpu=1"}}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			a := hosttest.Host(t, "580.159.04", 2)
			spec := hosttest.PlainSpec()
			p, err := PlanGPUs(t.Context(), a.GPU, c.gpu, spec, c.gpus)
			if err != nil || p.Facts.NoGPU != nil || p.Facts.NoHelper != nil || p.Facts.Driver != "580.159.04" {
				t.Fatalf("PlanGPUs = %+v, %v", p, err)
			}
			if !reflect.DeepEqual(spec, hosttest.PlainSpec()) {
				t.Error("something was injected before it was granted")
			}
			var want []string
			for _, n := range c.want {
				want = append(want, hosttest.UUID("b", n))
			}
			var got []string
			for _, d := range p.Facts.Devices {
				got = append(got, d.UUID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("GPUs %v, want %v", got, want)
			}
			if err := p.inject(spec); err != nil {
				t.Fatal(err)
			}
			if minors := gpu.DeviceMinors(spec); len(minors) != len(c.want) {
				t.Errorf("nodes of GPUs %v", minors)
			}
			names, noted, err := gpu.AnnotatedDevices(spec)
			mapped := 0
			if len(c.gpus.Pairs) > 0 {
				mapped = len(c.want)
			}
			if !noted || err != nil || !slices.Equal(names, p.devices) || strings.Count(spec.Annotations[gpu.MapAnnotation], "=") != min(mapped, len(c.gpu.Devices)) {
				t.Errorf("annotations %v", spec.Annotations)
			}
		})
	}
}

func TestPlanGPUsOfAPlainSnapshot(t *testing.T) {
	a := hosttest.Host(t, "580.159.04", 2)
	spec := hosttest.PlainSpec()
	spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1}}
	p, err := PlanGPUs(t.Context(), a.GPU, hosttest.Saved(1), spec, GPUOptions{})
	if err != nil || len(p.Facts.Devices) != 1 || p.Facts.Devices[0].UUID != hosttest.UUID("b", 1) {
		t.Fatalf("by its own nodes: %+v, %v", p, err)
	}
	if asks := trust.Review(spec, p.devices, trust.Policy{}); !slices.ContainsFunc(asks, func(r trust.Request) bool { return strings.Contains(r.What, "/dev/nvidia1") }) {
		t.Errorf("the node is not asked for: %v", asks)
	}
	f := GPUOptions{Devices: []string{"nvidia.com/gpu=0"}}
	if p, err = PlanGPUs(t.Context(), a.GPU, hosttest.Saved(1), spec, f); err != nil || p.Facts.Devices[0].UUID != hosttest.UUID("b", 0) {
		t.Fatalf("by --device: %+v, %v", p, err)
	}
	for _, r := range trust.Review(spec, p.devices, trust.Policy{Devices: f.Devices}) {
		if r.Grant == trust.Devices || r.Grant == trust.Mounts {
			t.Errorf("asks for what CDI has replaced: %v", r)
		}
	}
}

// TestGivenGPUs: a container that exists keeps the GPUs that it has by its own specification, whatever names the snapshot has.
func TestGivenGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []int // of the container
		gpus  int   // of the snapshot
		text  string
		want  []int  // GPUs of this host in the places of the snapshot's
		rule  string // of what is wrong
	}{
		"another than the snapshot names": {[]int{1}, 1, "", []int{1}, ""},
		"in order":                        {[]int{1, 0}, 2, "", []int{0, 1}, ""},
		"by numbers":                      {[]int{0, 1}, 2, "0=1,1=0", []int{1, 0}, ""},
		"by UUIDs":                        {[]int{0, 1}, 2, hosttest.UUID("a", 0) + "=" + hosttest.UUID("b", 1), []int{1, 0}, ""},
		"too few":                         {[]int{1}, 2, "", []int{1}, "gpu-count"},
		"too few for what is mapped":      {[]int{1}, 2, "0=1,1=0", []int{1}, "gpu-count"},
		"too many":                        {[]int{0, 1}, 1, "", []int{0, 1}, "gpu-count"},
		"none":                            {nil, 1, "", nil, "gpu-count"},
		"one that it has not":             {[]int{1}, 1, "0=" + hosttest.UUID("b", 0), nil, "gpu-missing"},
	} {
		hosttest.Host(t, "580.159.04", 2)
		spec := hosttest.PlainSpec()
		spec.Annotations = map[string]string{gpu.MapAnnotation: c.text}
		for _, n := range c.nodes {
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: fmt.Sprintf("/dev/nvidia%d", n), Type: "c", Major: 195, Minor: int64(n)})
		}
		before, _ := json.Marshal(spec)
		saved := hosttest.Saved(c.gpus, "nvidia.com/gpu=0")
		p, err := givenGPUs(t.Context(), saved, spec, false)
		if after, _ := json.Marshal(spec); string(after) != string(before) {
			t.Errorf("%s: the specification was changed: %s", name, after)
		}
		var misfit *gpu.MisfitError
		if errors.As(err, &misfit) && misfit.Rule == c.rule {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var want, got []string
		for _, n := range c.want {
			want = append(want, hosttest.UUID("b", n))
		}
		for _, d := range p.Facts.Devices {
			got = append(got, d.UUID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: GPUs %v, want %v", name, got, want)
		}
		v := host.CheckFit(image.Config{Version: image.ConfigVersion, Spec: before, GPU: saved}, host.FitTarget{GPUs: p.Facts})
		if found := slices.ContainsFunc(v.Findings, func(f host.FitFinding) bool { return f.Rule == c.rule }); found != (c.rule != "") {
			t.Errorf("%s: found %+v", name, v.Findings)
		}
		if p, err := givenGPUs(t.Context(), saved, spec, true); err != nil || p.Facts.Unasked != (c.rule == "" && c.text == "") {
			t.Errorf("%s: left to the shim: %+v, %v", name, p.Facts, err)
		}
	}
}

func TestPlanGPUsRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		gpu  *image.GPU
		gpus GPUOptions
		kind func(error) bool
		says string
	}{
		"GPUs for a snapshot without": {nil, GPUOptions{Devices: []string{"nvidia.com/gpu=0"}}, errdefs.IsInvalidArgument, "has no GPUs"},
		"hostile name":                {hosttest.Saved(1, "nvidia.com/gpu=../../x"), GPUOptions{}, errdefs.IsDataLoss, "VENDOR/CLASS=NAME"},
		"hostile annotation":          {hosttest.Saved(1, "nvidia.com/gpu=0,nvidia.com/gpu=1"), GPUOptions{}, errdefs.IsDataLoss, "VENDOR/CLASS=NAME"},
		"old one that is not there":   {hosttest.Saved(1, "nvidia.com/gpu=0"), GPUOptions{Pairs: pairs("1=0")}, errdefs.IsInvalidArgument, "the snapshot has no GPU 1, but 0 (GPU-a"},
		"new one that is not there":   {hosttest.Saved(1, "nvidia.com/gpu=0"), GPUOptions{Pairs: pairs("0=7")}, errdefs.IsInvalidArgument, "this host has no GPU 7"},
		"one it does not get":         {hosttest.Saved(1, "nvidia.com/gpu=0"), GPUOptions{Pairs: pairs("0=1")}, errdefs.IsInvalidArgument, "--device too"},
		"old one twice":               {hosttest.Saved(2, "nvidia.com/gpu=all"), GPUOptions{Pairs: pairs("0=0", "0=1")}, errdefs.IsInvalidArgument, "twice"},
		"new one twice":               {hosttest.Saved(2, "nvidia.com/gpu=all"), GPUOptions{Pairs: pairs("0=0", "1=0")}, errdefs.IsInvalidArgument, "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			a := hosttest.Host(t, "580.159.04", 2)
			_, err := PlanGPUs(t.Context(), a.GPU, c.gpu, hosttest.PlainSpec(), c.gpus)
			if err == nil || !c.kind(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("PlanGPUs: %v", err)
			}
		})
	}
}

// TestHostsWithoutGPUs: what is missing is for the rules to say, all of it at once.
func TestHostsWithoutGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		host func(*testing.T) config.Config
		gpu  *image.GPU
		rule string
	}{
		"no helper": {func(t *testing.T) config.Config { t.Setenv("PATH", t.TempDir()); return hosttest.CDI(t, "two") }, hosttest.Saved(1), "gpu-keeper"},
		"no driver": {func(t *testing.T) config.Config {
			return hosttest.HelperSays(t, 1, `{"driver":{"fault":"absent","message":"no libcuda.so.1"}}`)
		}, hosttest.Saved(1), "gpu-missing"},
		"no CDI device":  {func(t *testing.T) config.Config { return hosttest.Host(t, "580.159.04", 2) }, hosttest.Saved(1, "nvidia.com/gpu=7"), "gpu-missing"},
		"helper crashes": {func(t *testing.T) config.Config { return hosttest.HelperSays(t, 1, "") }, hosttest.Saved(1), "gpu-missing"},
		"other driver":   {func(t *testing.T) config.Config { return hosttest.Host(t, "590.10", 2) }, hosttest.Saved(1, "nvidia.com/gpu=0"), "gpu-driver"},
		"too few":        {func(t *testing.T) config.Config { return hosttest.Host(t, "580.159.04", 1) }, hosttest.Saved(2, "nvidia.com/gpu=0"), "gpu-count"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := PlanGPUs(t.Context(), c.host(t).GPU, c.gpu, hosttest.PlainSpec(), GPUOptions{})
			if err != nil {
				t.Fatal(err)
			}
			spec, err := json.Marshal(hosttest.PlainSpec())
			if err != nil {
				t.Fatal(err)
			}
			v := host.CheckFit(image.Config{Version: image.ConfigVersion, Spec: spec, GPU: c.gpu}, host.FitTarget{GPUs: p.Facts})
			if !slices.ContainsFunc(v.Findings, func(f host.FitFinding) bool { return f.Rule == c.rule && f.Fatal && f.Hint != "" }) {
				t.Errorf("found %+v", v.Findings)
			}
		})
	}
}

func TestParseGPUPair(t *testing.T) {
	for text, ok := range map[string]bool{
		"0=1": true, hosttest.UUID("a", 0) + "=" + hosttest.UUID("b", 1): true, "10=" + hosttest.UUID("b", 1): true,
		"": false, "0": false, "0=": false, "=1": false, "0=1=2": false, "-1=0": false, "01=0": false, "0=GPU-1": false, "0=nvidia.com/gpu=1": false, "0=+1": false,
	} {
		if _, err := ParseGPUPair(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestPlanGPUsLibrary: a snapshot of the engine keeper wants the library that it was made with.
func TestPlanGPUsLibrary(t *testing.T) {
	a := hosttest.Host(t, "580.159.04", 2)
	file := filepath.Join(t.TempDir(), "libcryo-gpu.so")
	t.Setenv("CRYO_GPU_LIBRARY", file)
	g := hosttest.Saved(1, "nvidia.com/gpu=0")
	g.Engine, g.Library = image.KeeperEngine, &image.GPULibrary{Version: "1.0"}
	p, err := PlanGPUs(t.Context(), a.GPU, g, hosttest.PlainSpec(), GPUOptions{})
	if err != nil || p.Facts.NoLibrary == nil {
		t.Errorf("without: %+v, %v", p.Facts, err)
	}
	if err := os.WriteFile(file, []byte("library"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err = PlanGPUs(t.Context(), a.GPU, g, hosttest.PlainSpec(), GPUOptions{})
	if err != nil || p.Facts.NoLibrary != nil || p.Facts.Library.Validate() != nil {
		t.Errorf("with: %+v, %v", p.Facts, err)
	}
}

// TestCheckRecordOfPieces: the images' word on device memory, by which the shim goes, must be the config's.
func TestCheckRecordOfPieces(t *testing.T) {
	for name, change := range map[string]func(r *gpu.Record){
		"same":              func(*gpu.Record) {},
		"another address":   func(r *gpu.Record) { r.Processes[0].Pieces[0].Address += 1 << 20 },
		"another process":   func(r *gpu.Record) { r.Processes[0].PID = 8 },
		"another GPU":       func(r *gpu.Record) { r.Processes[0].Pieces[0].Device = hosttest.UUID("a", 2) },
		"a piece less":      func(r *gpu.Record) { r.Processes[0].Pieces = r.Processes[0].Pieces[1:] },
		"none":              func(r *gpu.Record) { r.Processes[0].Pieces = nil },
		"by the driver":     func(r *gpu.Record) { *r = gpu.Record{GPU: image.GPU{Engine: image.DriverEngine, Devices: r.Devices}} },
		"another library":   func(r *gpu.Record) { r.Library.Version = "2" },
		"without a library": func(r *gpu.Record) { r.Library, r.Processes = nil, nil },
	} {
		record, same := hosttest.Handed(), hosttest.Handed()
		c := image.Config{GPU: &same.GPU}
		change(&record)
		images := t.TempDir()
		if err := record.WriteFile(images); err != nil {
			t.Fatal(err)
		}
		if err := checkRecord(c, images); name == "same" && err != nil || name != "same" && !errdefs.IsDataLoss(err) {
			t.Errorf("%s gives %v", name, err)
		}
	}
	record := hosttest.Handed()
	c := image.Config{GPU: &record.GPU}
	images := t.TempDir()
	if err := record.WriteFile(images); err != nil {
		t.Fatal(err)
	}
	for name, contradiction := range map[string]error{
		"a record without config": checkRecord(image.Config{}, images),
		"a config without record": checkRecord(c, t.TempDir()),
	} {
		if !errdefs.IsDataLoss(contradiction) {
			t.Errorf("%s: %v", name, contradiction)
		}
	}
}
