package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/shim/restore/restoretest"
)

// TestRecordGPUs: a snapshot has the names of the devices and nothing of what they were expanded to.
func TestRecordGPUs(t *testing.T) {
	settings := restoretest.CDI(t, "two")
	spec := restoretest.PlainSpec()
	if err := cdi.Open(settings.GPU.CDI...).Inject(spec, []string{"nvidia.com/gpu=1"}); err != nil {
		t.Fatal(err)
	}
	cdi.Annotate(spec, []string{"nvidia.com/gpu=all"})
	images := t.TempDir()
	record := gpu.Record{GPU: image.GPU{
		Engine: "driver", Driver: "580.159.04", CUDA: 13000, CDI: []string{"nvidia.com/gpu=all"}, Forced: []string{"gpu-peer"},
		Devices:   []image.GPUDevice{{UUID: restoretest.UUID("a", 1), Minor: 1, Name: "NVIDIA H200", Architecture: "9.0", Memory: 5, Used: 3}},
		Processes: []image.GPUProcess{{PID: 1, Command: "python", Memory: 3, Devices: []string{restoretest.UUID("a", 1)}}},
		Nodes:     []image.GPUNode{{Path: "/dev/nvidia1", Major: 195, Minor: 1}},
	}}
	if err := record.WriteFile(images); err != nil {
		t.Fatal(err)
	}
	c := image.Config{}
	var err error
	if c.Spec, err = json.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	if err := recordGPUs(settings.GPU, &c, images, checkpoint.Dumped{LockSeconds: 1, SaveSeconds: 2}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.GPU.CDI, []string{"nvidia.com/gpu=1"}) || len(c.GPU.Mounts) != 4 || c.GPU.Seconds != (image.GPUSeconds{Lock: 1, Checkpoint: 2}) ||
		c.GPU.Devices[0] != record.Devices[0] || c.GPU.Processes[0].Memory != 3 || c.GPU.Nodes[0].Path != "/dev/nvidia1" || len(c.GPU.Forced) != 1 {
		t.Errorf("recorded %+v", c.GPU)
	}
	if strings.Contains(string(c.Spec), "nvidia") {
		t.Errorf("left in the specification: %s", c.Spec)
	}
	c = image.Config{Spec: c.Spec}
	if err := recordGPUs(settings.GPU, &c, t.TempDir(), checkpoint.Dumped{}); err != nil || c.GPU != nil {
		t.Errorf("of a container without GPUs: %+v, %v", c.GPU, err)
	}
}

func TestDoctorOnGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		helper string // what it says; empty: there is none
		code   int    // how it ends
		driver bool   // the kernel's module is loaded
		want   map[string]string
	}{
		"nothing":            {"", 0, false, map[string]string{"gpu": good}},
		"no helper":          {"", 0, true, map[string]string{"gpu": worry}},
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
			a := restoretest.CDI(t, "two")
			if c.helper != "" {
				a = restoretest.HelperSays(t, c.code, c.helper)
			}
			root := t.TempDir()
			if c.driver {
				if err := os.MkdirAll(filepath.Join(root, "proc/driver/nvidia/version"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			got := map[string]string{}
			for _, x := range checkGPU(t.Context(), &patient{app: &app{}, root: root, config: a}) {
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
	a := restoretest.Host(t, "580.159.04", 1)
	p := &patient{app: &app{}, root: t.TempDir(), config: a}
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
