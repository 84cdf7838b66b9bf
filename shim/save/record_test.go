package save

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/hosttest"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
)

// TestRecordLock records what a restore needs of nftables, for containers whose network CRIU has locked.
func TestRecordLock(t *testing.T) {
	const inventoryMagic = 0x58313116
	dump := func(method uint32) string {
		raw, err := proto.MarshalOptions{AllowPartial: true}.Marshal(&inventory.InventoryEntry{NetworkLockMethod: &method})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		head := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, inventoryMagic), uint32(len(raw)))
		if err := os.WriteFile(filepath.Join(dir, "inventory.img"), append(head, raw...), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	own := &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}}}
	for name, test := range map[string]struct {
		linux  *specs.Linux
		method uint32
		want   bool
	}{
		"nftables":             {own, 1, true},
		"iptables":             {own, 0, false},
		"skip":                 {own, 2, false},
		"the host's network":   {&specs.Linux{}, 1, false},
		"no linux, no network": {nil, 1, false},
	} {
		spec, err := json.Marshal(specs.Spec{Linux: test.linux})
		if err != nil {
			t.Fatal(err)
		}
		c := image.Config{Spec: spec}
		if err := recordLock(&c, dump(test.method)); err != nil || slices.Contains(c.Host.Features, host.NFTablesLock) != test.want {
			t.Errorf("%s: features %v, %v", name, c.Host.Features, err)
		}
	}
	spec, _ := json.Marshal(specs.Spec{Linux: own}) // it marshals above
	dir := dump(1)
	if err := os.Truncate(filepath.Join(dir, "inventory.img"), 6); err != nil {
		t.Fatal(err)
	}
	if err := recordLock(&image.Config{Spec: spec}, dir); !errdefs.IsDataLoss(err) {
		t.Errorf("damaged images give %v", err)
	}
}

// TestRecordGPUs: a snapshot has the names of the devices and nothing of what they were expanded to.
func TestRecordGPUs(t *testing.T) {
	settings := hosttest.CDI(t, "two")
	spec := hosttest.PlainSpec()
	if err := gpu.OpenCDI(settings.GPU.CDI...).Inject(spec, []string{"nvidia.com/gpu=1"}); err != nil {
		t.Fatal(err)
	}
	gpu.AnnotateDevices(spec, []string{"nvidia.com/gpu=all"})
	images := t.TempDir()
	record := gpu.Record{GPU: image.GPU{
		Engine: "driver", Driver: "580.159.04", CUDA: 13000, CDI: []string{"nvidia.com/gpu=all"}, Forced: []string{"gpu-peer"},
		Devices:   []image.GPUDevice{{UUID: hosttest.UUID("a", 1), Minor: 1, Name: "NVIDIA H200", Architecture: "9.0", Memory: 5, Used: 3}},
		Processes: []image.GPUProcess{{PID: 1, Command: "python", Memory: 3, Devices: []string{hosttest.UUID("a", 1)}}},
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
