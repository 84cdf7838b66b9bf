package image

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
)

func twoGPUs() *GPU {
	return &GPU{
		Engine: "driver", Driver: "580.159.04", CUDA: 13000,
		Devices: []GPUDevice{
			{UUID: "GPU-a", Minor: 0, Name: "NVIDIA H200", Architecture: "9.0", Memory: 140 << 30},
			{UUID: "GPU-b", Minor: 1, Name: "NVIDIA H200", Architecture: "9.0", Memory: 140 << 30},
		},
		Processes: []GPUProcess{
			{PID: 1, Command: "python", Memory: 3 << 30, Devices: []string{"GPU-a"}},
			{PID: 9, Command: "python", Memory: 5 << 30, Devices: []string{"GPU-a"}},
			{PID: 10, Command: "python", Memory: 7 << 30, Devices: []string{"GPU-a", "GPU-b"}},
		},
		CDI:     []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"},
		Mounts:  []string{"/usr/bin/nvidia-smi"},
		Nodes:   []GPUNode{{Path: "/dev/nvidia0", Major: 195}},
		Seconds: GPUSeconds{Lock: 0.1, Checkpoint: 0.5},
	}
}

func TestGPUConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*GPU)
		ok     bool
	}{
		"as written":         {func(*GPU) {}, true},
		"nothing of it":      {func(g *GPU) { *g = GPU{} }, true},
		"without UUID":       {func(g *GPU) { g.Devices[0].UUID = "" }, false},
		"one UUID twice":     {func(g *GPU) { g.Devices[0].UUID = "GPU-b" }, false},
		"negative memory":    {func(g *GPU) { g.Devices[0].Memory = -1 }, false},
		"negative minor":     {func(g *GPU) { g.Devices[0].Minor = -1 }, false},
		"negative part":      {func(g *GPU) { g.Devices[0].Used = -1 }, false},
		"endless parts":      {func(g *GPU) { g.Devices[0].Used, g.Devices[1].Used = math.MaxInt64, 1 }, false},
		"negative use":       {func(g *GPU) { g.Processes[0].Memory = -1 }, false},
		"overflow":           {func(g *GPU) { g.Processes[0].Memory, g.Processes[1].Memory = math.MaxInt64, 1 }, false},
		"unknown GPU":        {func(g *GPU) { g.Processes[0].Devices = []string{"GPU-c"} }, false},
		"relative mount":     {func(g *GPU) { g.Mounts = []string{"usr"} }, false},
		"node elsewhere":     {func(g *GPU) { g.Nodes[0].Path = "/etc/shadow" }, false},
		"node with dots":     {func(g *GPU) { g.Nodes[0].Path = "/dev/../etc/shadow" }, false},
		"more than can be":   {func(g *GPU) { g.Devices = make([]GPUDevice, maxGPUs+1) }, false},
		"endless processes":  {func(g *GPU) { g.Processes = make([]GPUProcess, maxGPUItems+1) }, false},
		"endless CDI device": {func(g *GPU) { g.CDI = make([]string, maxGPUs+1) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := twoGPUs()
			c.change(g)
			data, err := json.Marshal(Config{Version: ConfigVersion, GPU: g})
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseConfig(data, digest.FromBytes(data))
			var damaged *DamagedError
			if c.ok != (err == nil) || !c.ok && !errors.As(err, &damaged) {
				t.Fatalf("parseConfig: %v", err)
			}
			if c.ok && !reflect.DeepEqual(got.GPU, g) {
				t.Errorf("got %+v, want %+v", got.GPU, g)
			}
		})
	}
}

func TestNeed(t *testing.T) {
	each, all := twoGPUs().Need()
	if !slices.Equal(each, []int64{8 << 30, 0}) || all != 15<<30 {
		t.Errorf("Need = %v, %d", each, all)
	}
	g := twoGPUs()
	g.Devices[0].Used, g.Devices[1].Used = 9<<30, 7<<30
	if each, all = g.Need(); !slices.Equal(each, []int64{9 << 30, 7 << 30}) || all != 16<<30 {
		t.Errorf("Need = %v, %d", each, all)
	}
}
