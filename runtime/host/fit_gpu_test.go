package host

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/record"
)

type hinted struct{ error }

func (hinted) Hint() string { return "a hint of its own" }

// gpuPair is a snapshot with two GPUs and a host on which it fits.
func gpuPair() (image.Config, *specs.Spec, FitTarget) {
	c, runs, t := pair()
	a := image.GPUDevice{UUID: "GPU-a", Name: "NVIDIA H200", Architecture: "9.0", Memory: 140 << 30}
	b := a
	b.UUID = "GPU-b"
	c.GPU = &image.GPU{
		Engine: "driver", Driver: "580.159.04", Devices: []image.GPUDevice{a, b}, Mounts: []string{"/usr/bin/nvidia-smi", "/usr/lib/libcuda.so.580.159.04"},
		Processes: []image.GPUProcess{{PID: 1, Memory: 10 << 30, Devices: []string{"GPU-a"}}, {PID: 2, Memory: 20 << 30, Devices: []string{"GPU-a"}}},
	}
	t.GPUs = FitGPUs{Driver: "580.159.04", Devices: []record.HostGPU{{GPUDevice: a, Free: 30 << 30}, {GPUDevice: b}}, Mounts: slices.Clone(c.GPU.Mounts)}
	t.GPUs.Devices[0].UUID, t.GPUs.Devices[1].UUID = "GPU-c", "GPU-d"
	return c, runs, t
}

func libraryOf(digit string) *image.GPULibrary {
	return &image.GPULibrary{Version: "1.0", Digest: digest.Digest("sha256:" + digit)}
}

func TestGPURules(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*image.Config, *specs.Spec, *FitTarget)
		want   []string // rules that find something
		says   string
	}{
		"same":           {func(*image.Config, *specs.Spec, *FitTarget) {}, nil, ""},
		"no GPU here":    {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs = FitGPUs{} }, []string{"gpu-missing"}, "no NVIDIA driver"},
		"none in either": {func(c *image.Config, _ *specs.Spec, t *FitTarget) { c.GPU, t.GPUs = nil, FitGPUs{} }, nil, ""},
		"none in it":     {func(c *image.Config, _ *specs.Spec, t *FitTarget) { c.GPU, t.GPUs.NoHelper = nil, errors.New("x") }, nil, ""},
		"not asked": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) {
			t.GPUs = FitGPUs{Unasked: true, Mounts: t.GPUs.Mounts}
		}, nil, ""},
		"without files": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs = FitGPUs{Unasked: true} }, []string{"gpu-libraries"}, "libcuda.so"},
		"library": {func(c *image.Config, _ *specs.Spec, t *FitTarget) {
			c.GPU.Library, t.GPUs.Library = libraryOf("a"), "sha256:a"
		}, nil, ""},
		"another library": {func(c *image.Config, _ *specs.Spec, t *FitTarget) {
			c.GPU.Library, t.GPUs.Library = libraryOf("a"), "sha256:b"
		}, []string{"gpu-library"}, "sha256:b instead of sha256:a"},
		"no library": {func(c *image.Config, _ *specs.Spec, t *FitTarget) {
			c.GPU.Library, t.GPUs.NoLibrary = libraryOf("a"), hinted{errors.New("not there")}
		}, []string{"gpu-library"}, "not there"},
		"full of pieces": {func(c *image.Config, _ *specs.Spec, t *FitTarget) {
			c.GPU.Processes[1].Devices = []string{"GPU-a", "GPU-b"}
			c.GPU.Processes[1].Pieces = []image.GPUPiece{{Size: 1 << 30, Device: "GPU-b"}}
		}, []string{"gpu-memory"}, "GPU 1 held 1024 MiB"},
		"no helper": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) {
			t.GPUs = FitGPUs{NoHelper: hinted{errors.New("none")}}
		}, []string{"gpu-keeper"}, "none"},
		"no CDI device": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs.NoGPU = hinted{errors.New("no gpu=7")} }, []string{"gpu-missing"}, "no gpu=7"},
		"branch":        {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs.Driver = "590.10" }, []string{"gpu-driver"}, "590.10"},
		"older branch":  {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs.Driver = "58.0" }, []string{"gpu-driver"}, "58.0"},
		"version":       {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs.Driver = "580.173.01" }, []string{"gpu-driver-version"}, "580.173.01"},
		"fewer":         {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs.Devices = t.GPUs.Devices[:1] }, []string{"gpu-count"}, "2 GPUs, and would get 1"},
		"more": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) {
			t.GPUs.Devices = append(t.GPUs.Devices, record.HostGPU{})
		}, []string{"gpu-count"}, "2 GPUs, and would get 3"},
		"architecture":   {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs.Devices[1].Architecture = "8.0" }, []string{"gpu-architecture"}, "GPU 1 was"},
		"full":           {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs.Devices[0].Free-- }, []string{"gpu-memory"}, "GPU 0 held 30720 MiB"},
		"other is empty": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { slices.Reverse(t.GPUs.Devices) }, []string{"gpu-memory"}, "GPU-d"},
		"over several": {func(c *image.Config, _ *specs.Spec, _ *FitTarget) {
			c.GPU.Processes[1].Devices = []string{"GPU-a", "GPU-b"}
		}, nil, ""},
		"several, full": {func(c *image.Config, _ *specs.Spec, _ *FitTarget) {
			c.GPU.Processes[1] = image.GPUProcess{Memory: 21 << 30, Devices: []string{"GPU-a", "GPU-b"}}
		}, []string{"gpu-memory"}, "held 31744 MiB on GPUs"},
		"never used": {func(c *image.Config, _ *specs.Spec, t *FitTarget) {
			c.GPU.Processes, c.GPU.Driver, t.GPUs.Devices = nil, "", t.GPUs.Devices[:1]
		}, nil, ""},
		"libraries": {func(_ *image.Config, _ *specs.Spec, t *FitTarget) { t.GPUs.Mounts = t.GPUs.Mounts[:1] }, []string{"gpu-libraries"}, "/usr/lib/libcuda.so.580.159.04"},
		"all libraries": {func(c *image.Config, _ *specs.Spec, _ *FitTarget) {
			c.GPU.Mounts = []string{"/a", "/b", "/c", "/d", "/e"}
		}, []string{"gpu-libraries"}, "/c and 2 more"},
		"mounted by hand": {func(_ *image.Config, s *specs.Spec, t *FitTarget) {
			s.Mounts, t.GPUs.Mounts = append(s.Mounts, mountAt("/usr/bin/nvidia-smi"), mountAt("/usr/lib/libcuda.so.580.159.04")), nil
		}, nil, ""},
		"without CDI": {func(c *image.Config, _ *specs.Spec, t *FitTarget) { c.GPU.Mounts, t.GPUs.Mounts = nil, nil }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config, spec, target := gpuPair()
			c.change(&config, spec, &target)
			config.Spec, _ = json.Marshal(spec)
			v := CheckFit(config, target)
			var got []string
			for _, f := range v.Findings {
				got = append(got, f.Rule)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("found %v, want %v", v.Findings, c.want)
			}
			if len(c.want) == 0 {
				return
			}
			f := v.Findings[0]
			if f.Fatal != (f.Rule != "gpu-driver-version") || f.Fatal && f.Hint == "" {
				t.Errorf("%+v", f)
			}
			if !strings.Contains(f.Problem, c.says) {
				t.Errorf("problem %q", f.Problem)
			}
			if forced, _ := v.Force("all"); f.Fatal && forced.Fits() {
				t.Error("it was overridden")
			}
			if (target.GPUs.NoHelper != nil || target.GPUs.NoGPU != nil) && f.Hint != "a hint of its own" {
				t.Errorf("hint %q", f.Hint)
			}
		})
	}
}

func mountAt(destination string) specs.Mount {
	return specs.Mount{Destination: destination, Type: "bind", Source: "/there"}
}
