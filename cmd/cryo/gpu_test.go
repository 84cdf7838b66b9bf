package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// uuid is that of the nth GPU of hosts made up for tests.
func uuid(host string, n int) string {
	return fmt.Sprintf("GPU-%s%d-0000-4000-8000-%012d", strings.Repeat(host, 7), n, n)
}

// gpuHost makes this host one with n GPUs, by a keeper that says so and CDI files as nvidia-ctk writes them.
func gpuHost(t *testing.T, driver string, n int) *app {
	t.Helper()
	return gpuHostWith(t, driver, n, 100<<30)
}

// gpuHostWith is gpuHost with so much memory free on each.
func gpuHostWith(t *testing.T, driver string, n int, free int64) *app {
	t.Helper()
	facts := keeper.Facts{Driver: driver, CUDA: 13000}
	for i := range n {
		facts.Devices = append(facts.Devices, keeper.Device{
			UUID: uuid("b", i), Index: i, Minor: i, Name: "NVIDIA H200", Architecture: "9.0", Memory: 140 << 30, Free: free,
		})
	}
	line, err := json.Marshal(facts)
	if err != nil {
		t.Fatal(err)
	}
	return keeperSays(t, 0, string(line))
}

// keeperSays puts a keeper into PATH that answers with one line and ends with an exit code; where it serves, and that is 0, when it is to end.
func keeperSays(t *testing.T, code int, line string) *app {
	t.Helper()
	return keeperDoes(t, fmt.Sprintf(`if [ "$1" = serve ] && [ %[2]d = 0 ]; then
	echo '{"hello":1}'
	read -r request
	printf '{"facts":'
	tr -d '\n' <<'END'
%[1]s
END
	echo '}'
	exec cat
fi
cat <<'END'
%[1]s
END
exit %[2]d
`, line, code))
}

// keeperDoes puts a keeper into PATH that is a script.
func keeperDoes(t *testing.T, script string) *app {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, keeperName), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return cdiHost(t, "two")
}

// cdiHost configures CDI files of this name.
func cdiHost(t *testing.T, name string) *app {
	t.Helper()
	files, err := filepath.Abs("../../runtime/gpu/cdi/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "[gpu]\ncdi = [%q]\n", files), 0o600); err != nil {
		t.Fatal(err)
	}
	return &app{configPath: path}
}

// saved is the GPU part of a snapshot taken elsewhere.
func saved(devices int, names ...string) *image.GPU {
	g := &image.GPU{Engine: "driver", Driver: "580.159.04", CDI: names}
	for i := range devices {
		g.Devices = append(g.Devices, image.GPUDevice{UUID: uuid("a", i), Minor: i, Name: "NVIDIA H200", Architecture: "9.0", Memory: 140 << 30, Used: 1 << 30})
		g.Processes = append(g.Processes, image.GPUProcess{PID: i + 1, Command: "python", Memory: 1 << 30, Devices: []string{uuid("a", i)}})
	}
	return g
}

func plainSpec() *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{Env: []string{"PATH=/bin"}},
		Linux: &specs.Linux{Resources: &specs.LinuxResources{}, Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
		}},
	}
}

func TestPlanGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		gpu   *image.GPU
		flags gpuFlags
		want  []int // GPUs of this host in the places of the snapshot's
	}{
		"as it was":         {saved(1, "nvidia.com/gpu=1"), gpuFlags{}, []int{1}},
		"another":           {saved(1, "nvidia.com/gpu=1"), gpuFlags{devices: []string{"nvidia.com/gpu=0"}}, []int{0}},
		"both":              {saved(2, "nvidia.com/gpu=0", "nvidia.com/gpu=1"), gpuFlags{}, []int{0, 1}},
		"all":               {saved(2, "nvidia.com/gpu=0"), gpuFlags{devices: []string{"nvidia.com/gpu=all"}}, []int{0, 1}},
		"the other way":     {saved(2, "nvidia.com/gpu=all"), gpuFlags{gpus: []string{"0=1"}}, []int{1, 0}},
		"by UUIDs":          {saved(2, "nvidia.com/gpu=all"), gpuFlags{gpus: []string{uuid("a", 1) + "=" + uuid("b", 0), "0=1"}}, []int{1, 0}},
		"more than it had":  {saved(1), gpuFlags{devices: []string{"nvidia.com/gpu=all"}, gpus: []string{"0=1"}}, []int{1, 0}},
		"fewer than it had": {saved(2), gpuFlags{devices: []string{"nvidia.com/gpu=1"}}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			a := gpuHost(t, "580.159.04", 2)
			if err := c.flags.check(); err != nil {
				t.Fatal(err)
			}
			spec := plainSpec()
			p, err := a.planGPUs(t.Context(), c.gpu, spec, c.flags)
			if err != nil || p.facts.NoGPU != nil || p.facts.NoKeeper != nil || p.facts.Driver != "580.159.04" {
				t.Fatalf("planGPUs = %+v, %v", p, err)
			}
			asked := fmt.Sprintf("/proc/%d", p.driver.keeper.PID())
			if !exists(asked) {
				t.Error("the driver is not kept open")
			}
			p.driver.end()
			p.driver.close()
			if exists(asked) {
				t.Error("the driver is kept open for ever")
			}
			if !reflect.DeepEqual(spec, plainSpec()) {
				t.Error("something was injected before it was granted")
			}
			var want []string
			for _, n := range c.want {
				want = append(want, uuid("b", n))
			}
			var got []string
			for _, d := range p.facts.Devices {
				got = append(got, d.UUID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("GPUs %v, want %v", got, want)
			}
			if err := p.inject(spec); err != nil {
				t.Fatal(err)
			}
			if minors := cdi.Minors(spec); len(minors) != len(c.want) {
				t.Errorf("nodes of GPUs %v", minors)
			}
			names, noted, err := cdi.Annotated(spec)
			pairs := 0
			if len(c.flags.gpus) > 0 {
				pairs = len(c.want)
			}
			if !noted || err != nil || !slices.Equal(names, p.devices) || strings.Count(spec.Annotations[gpu.MapAnnotation], "=") != min(pairs, len(c.gpu.Devices)) {
				t.Errorf("annotations %v", spec.Annotations)
			}
		})
	}
}

func TestPlanGPUsOfAPlainSnapshot(t *testing.T) {
	a := gpuHost(t, "580.159.04", 2)
	spec := plainSpec()
	spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1}}
	p, err := a.planGPUs(t.Context(), saved(1), spec, gpuFlags{})
	if err != nil || len(p.facts.Devices) != 1 || p.facts.Devices[0].UUID != uuid("b", 1) {
		t.Fatalf("by its own nodes: %+v, %v", p, err)
	}
	if asks := trust.Review(spec, p.devices, trust.Policy{}); !slices.ContainsFunc(asks, func(r trust.Request) bool { return strings.Contains(r.What, "/dev/nvidia1") }) {
		t.Errorf("the node is not asked for: %v", asks)
	}
	f := gpuFlags{devices: []string{"nvidia.com/gpu=0"}}
	if p, err = a.planGPUs(t.Context(), saved(1), spec, f); err != nil || p.facts.Devices[0].UUID != uuid("b", 0) {
		t.Fatalf("by --device: %+v, %v", p, err)
	}
	for _, r := range trust.Review(spec, p.devices, trust.Policy{Devices: f.devices}) {
		if r.Grant == trust.Devices || r.Grant == trust.Mounts {
			t.Errorf("asks for what CDI has replaced: %v", r)
		}
	}
}

func TestPlanGPUsRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		gpu   *image.GPU
		flags gpuFlags
		kind  func(error) bool
		says  string
	}{
		"GPUs for a snapshot without": {nil, gpuFlags{devices: []string{"nvidia.com/gpu=0"}}, errdefs.IsInvalidArgument, "has no GPUs"},
		"hostile name":                {saved(1, "nvidia.com/gpu=../../x"), gpuFlags{}, errdefs.IsDataLoss, "VENDOR/CLASS=NAME"},
		"hostile annotation":          {saved(1, "nvidia.com/gpu=0,nvidia.com/gpu=1"), gpuFlags{}, errdefs.IsDataLoss, "VENDOR/CLASS=NAME"},
		"old one that is not there":   {saved(1, "nvidia.com/gpu=0"), gpuFlags{gpus: []string{"1=0"}}, errdefs.IsInvalidArgument, "the snapshot has no GPU 1, but 0 (GPU-a"},
		"new one that is not there":   {saved(1, "nvidia.com/gpu=0"), gpuFlags{gpus: []string{"0=7"}}, errdefs.IsInvalidArgument, "this host has no GPU 7"},
		"one it does not get":         {saved(1, "nvidia.com/gpu=0"), gpuFlags{gpus: []string{"0=1"}}, errdefs.IsInvalidArgument, "--device too"},
		"old one twice":               {saved(2, "nvidia.com/gpu=all"), gpuFlags{gpus: []string{"0=0", "0=1"}}, errdefs.IsInvalidArgument, "twice"},
		"new one twice":               {saved(2, "nvidia.com/gpu=all"), gpuFlags{gpus: []string{"0=0", "1=0"}}, errdefs.IsInvalidArgument, "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			a := gpuHost(t, "580.159.04", 2)
			if err := c.flags.check(); err != nil {
				t.Fatal(err)
			}
			_, err := a.planGPUs(t.Context(), c.gpu, plainSpec(), c.flags)
			if err == nil || !c.kind(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("planGPUs: %v", err)
			}
		})
	}
}

// TestHostsWithoutGPUs: what is missing is for the rules to say, all of it at once.
func TestHostsWithoutGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		host func(*testing.T) *app
		gpu  *image.GPU
		rule string
	}{
		"no keeper": {func(t *testing.T) *app { t.Setenv("PATH", t.TempDir()); return cdiHost(t, "two") }, saved(1), "gpu-keeper"},
		"no driver": {func(t *testing.T) *app {
			return keeperSays(t, 1, `{"driver":{"fault":"absent","message":"no libcuda.so.1"}}`)
		}, saved(1), "gpu-missing"},
		"no CDI device":  {func(t *testing.T) *app { return gpuHost(t, "580.159.04", 2) }, saved(1, "nvidia.com/gpu=7"), "gpu-missing"},
		"keeper crashes": {func(t *testing.T) *app { return keeperSays(t, 1, "") }, saved(1), "gpu-missing"},
		"other driver":   {func(t *testing.T) *app { return gpuHost(t, "590.10", 2) }, saved(1, "nvidia.com/gpu=0"), "gpu-driver"},
		"too few":        {func(t *testing.T) *app { return gpuHost(t, "580.159.04", 1) }, saved(2, "nvidia.com/gpu=0"), "gpu-count"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := c.host(t).planGPUs(t.Context(), c.gpu, plainSpec(), gpuFlags{})
			if err != nil {
				t.Fatal(err)
			}
			spec, err := json.Marshal(plainSpec())
			if err != nil {
				t.Fatal(err)
			}
			v := fit.Check(image.Config{Version: image.ConfigVersion, Spec: spec, GPU: c.gpu}, fit.Target{GPUs: p.facts})
			if !slices.ContainsFunc(v.Findings, func(f fit.Finding) bool { return f.Rule == c.rule && f.Fatal && f.Hint != "" }) {
				t.Errorf("found %+v", v.Findings)
			}
		})
	}
}

func TestParseGPUPair(t *testing.T) {
	for text, ok := range map[string]bool{
		"0=1": true, uuid("a", 0) + "=" + uuid("b", 1): true, "10=" + uuid("b", 1): true,
		"": false, "0": false, "0=": false, "=1": false, "0=1=2": false, "-1=0": false, "01=0": false, "0=GPU-1": false, "0=nvidia.com/gpu=1": false, "0=+1": false,
	} {
		if _, err := parseGPUPair(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestRecordGPUs: a snapshot has the names of the devices and nothing of what they were expanded to.
func TestRecordGPUs(t *testing.T) {
	a := cdiHost(t, "two")
	settings, err := a.config()
	if err != nil {
		t.Fatal(err)
	}
	spec := plainSpec()
	if err := cdi.Open(settings.GPU.CDI...).Inject(spec, []string{"nvidia.com/gpu=1"}); err != nil {
		t.Fatal(err)
	}
	cdi.Annotate(spec, []string{"nvidia.com/gpu=all"})
	images := t.TempDir()
	record := gpu.Record{GPU: image.GPU{
		Engine: "driver", Driver: "580.159.04", CUDA: 13000, CDI: []string{"nvidia.com/gpu=all"}, Forced: []string{"gpu-peer"},
		Devices:   []image.GPUDevice{{UUID: uuid("a", 1), Minor: 1, Name: "NVIDIA H200", Architecture: "9.0", Memory: 5, Used: 3}},
		Processes: []image.GPUProcess{{PID: 1, Command: "python", Memory: 3, Devices: []string{uuid("a", 1)}}},
		Nodes:     []image.GPUNode{{Path: "/dev/nvidia1", Major: 195, Minor: 1}},
	}}
	if err := record.WriteFile(images); err != nil {
		t.Fatal(err)
	}
	c := image.Config{}
	if c.Spec, err = json.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	if err := a.recordGPUs(&c, images, checkpoint.Dumped{LockSeconds: 1, SaveSeconds: 2}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.GPU.CDI, []string{"nvidia.com/gpu=1"}) || len(c.GPU.Mounts) != 4 || c.GPU.Seconds != (image.GPUSeconds{Lock: 1, Checkpoint: 2}) ||
		c.GPU.Devices[0] != image.GPUDevice(record.Devices[0]) || c.GPU.Processes[0].Memory != 3 || c.GPU.Nodes[0].Path != "/dev/nvidia1" || len(c.GPU.Forced) != 1 {
		t.Errorf("recorded %+v", c.GPU)
	}
	if strings.Contains(string(c.Spec), "nvidia") {
		t.Errorf("left in the specification: %s", c.Spec)
	}
	if err := checkRecord(c, images); err != nil {
		t.Error(err)
	}
	for name, contradiction := range map[string]error{
		"a record without config": checkRecord(image.Config{}, images),
		"a config without record": checkRecord(c, t.TempDir()),
	} {
		if !errdefs.IsDataLoss(contradiction) {
			t.Errorf("%s: %v", name, contradiction)
		}
	}
	c = image.Config{Spec: c.Spec}
	if err := a.recordGPUs(&c, t.TempDir(), checkpoint.Dumped{}); err != nil || c.GPU != nil {
		t.Errorf("of a container without GPUs: %+v, %v", c.GPU, err)
	}
}

func TestForgetIn(t *testing.T) {
	spec := plainSpec()
	cdi.Annotate(spec, []string{"nvidia.com/gpu=0"})
	spec.Annotations[gpu.MapAnnotation], spec.Annotations["mine"] = "x=y", "kept"
	packed, err := typeurl.MarshalAny(spec)
	if err != nil {
		t.Fatal(err)
	}
	c := containers.Container{Spec: packed}
	if err := forgetIn(&c); err != nil {
		t.Fatal(err)
	}
	var left specs.Spec
	if err := json.Unmarshal(c.Spec.GetValue(), &left); err != nil {
		t.Fatal(err)
	}
	if c.Spec.GetTypeUrl() != packed.GetTypeUrl() || !reflect.DeepEqual(left.Annotations, map[string]string{"mine": "kept"}) {
		t.Errorf("left %v of %s", left.Annotations, c.Spec.GetTypeUrl())
	}
}

func TestDoctorOnGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		keeper string // what it says; empty: there is none
		code   int    // how it ends
		driver bool   // the kernel's module is loaded
		want   map[string]string
	}{
		"nothing":            {"", 0, false, map[string]string{"gpu": good}},
		"no keeper":          {"", 0, true, map[string]string{"gpu": worry}},
		"no driver":          {`{"driver":{"fault":"absent","message":"none"}}`, 1, false, map[string]string{"gpu": good}},
		"no libraries":       {`{"driver":{"fault":"absent","message":"none"}}`, 1, true, map[string]string{"gpu": worry}},
		"old driver":         {`{"driver":{"fault":"old","message":"550"}}`, 1, true, map[string]string{"gpu": worry}},
		"two GPUs":           {`{"driver":"580.159.04","cuda":13000,"devices":[{"index":0},{"index":1}]}`, 0, true, map[string]string{"gpu": good, "gpu 0": good, "gpu 1": good, "gpu cdi": good}},
		"divided, and MPS":   {`{"driver":"580.159.04","mps":true,"devices":[{"mig":true}]}`, 0, true, map[string]string{"gpu": good, "gpu 0": worry, "gpu mps": worry, "gpu cdi": good}},
		"nonsense":           {`{"what":1}`, 0, true, map[string]string{"gpu": worry}},
		"a driver elsewhere": {`{"driver":"580.159.04","devices":[]}`, 0, false, map[string]string{"gpu": good, "gpu cdi": good}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", "/usr/bin:/bin")
			a := cdiHost(t, "two")
			if c.keeper != "" {
				a = keeperSays(t, c.code, c.keeper)
			}
			root := t.TempDir()
			if c.driver {
				if err := os.MkdirAll(filepath.Join(root, "proc/driver/nvidia/version"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			settings, err := a.config()
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, x := range checkGPU(t.Context(), &patient{app: a, root: root, config: settings}) {
				got[x.Name] = x.Status
				if x.Detail == "" || x.Status == worry && x.Mend == "" {
					t.Errorf("%+v", x)
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestDoctorOnCDIAndAMD(t *testing.T) {
	a := gpuHost(t, "580.159.04", 1)
	p := &patient{app: a, root: t.TempDir()}
	p.config.GPU.CDI = []string{t.TempDir()}
	if x := checkCDI(p); x[0].Status != worry || !strings.Contains(x[0].Mend, "nvidia-ctk cdi generate") {
		t.Errorf("without files: %+v", x)
	}
	if err := os.MkdirAll(filepath.Join(p.root, "dev/kfd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if x := checkAMD(p); len(x) != 1 || x[0].Status != note {
		t.Errorf("AMD: %+v", x)
	}
}
