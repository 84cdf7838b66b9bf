package image

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/record"
)

// pieceUnit divides addresses and sizes of pieces.
const pieceUnit = 64 << 10

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

// handOver has the first process hand over memory on both GPUs.
func handOver(g *GPU) *GPU {
	g.Engine, g.Library = KeeperEngine, &GPULibrary{Version: "1.0", Digest: testLibrary}
	g.Processes[0].Pieces = []GPUPiece{{Address: 4 << 20, Size: 2 << 20, Device: "GPU-a"}, {Address: 6 << 20, Size: 1 << 32, Device: "GPU-b"}}
	return g
}

func TestGPUConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*GPU)
		ok     bool
	}{
		"as written":        {func(*GPU) {}, true},
		"nothing of it":     {func(g *GPU) { *g = GPU{Engine: "driver"} }, true},
		"without UUID":      {func(g *GPU) { g.Devices[0].UUID = "" }, false},
		"one UUID twice":    {func(g *GPU) { g.Devices[0].UUID = "GPU-b" }, false},
		"negative memory":   {func(g *GPU) { g.Devices[0].Memory = -1 }, false},
		"negative minor":    {func(g *GPU) { g.Devices[0].Minor = -1 }, false},
		"negative part":     {func(g *GPU) { g.Devices[0].Used = -1 }, false},
		"endless parts":     {func(g *GPU) { g.Devices[0].Used, g.Devices[1].Used = math.MaxInt64, 1 }, false},
		"negative use":      {func(g *GPU) { g.Processes[0].Memory = -1 }, false},
		"overflow":          {func(g *GPU) { g.Processes[0].Memory, g.Processes[1].Memory = math.MaxInt64, 1 }, false},
		"unknown GPU":       {func(g *GPU) { g.Processes[0].Devices = []string{"GPU-c"} }, false},
		"relative mount":    {func(g *GPU) { g.Mounts = []string{"usr"} }, false},
		"node elsewhere":    {func(g *GPU) { g.Nodes[0].Path = "/etc/shadow" }, false},
		"node with dots":    {func(g *GPU) { g.Nodes[0].Path = "/dev/../etc/shadow" }, false},
		"more than can be":  {func(g *GPU) { g.Devices = make([]GPUDevice, record.MaxGPUs+1) }, false},
		"endless processes": {func(g *GPU) { g.Processes = make([]GPUProcess, 1<<16+1) }, false},
		"pieces":            {func(g *GPU) { handOver(g) }, true},
		"fallback":          {func(g *GPU) { handOver(g).Processes[1].Fallback = "no library" }, true},
		"an import":         {func(g *GPU) { handOver(g).Processes[1].Imports = []GPUImport{{Memory: 3, Owner: 1, Of: 1}} }, true},
		"import of itself":  {func(g *GPU) { handOver(g).Processes[1].Imports = []GPUImport{{Memory: 3, Owner: 9, Of: 4, Host: true}} }, true},
		"multicast object": {func(g *GPU) {
			handOver(g).Processes[1].Imports = []GPUImport{{Memory: 3, Owner: 9, Of: 4, Multicast: true}}
		}, true},
		"two kinds":          {func(g *GPU) { handOver(g).Processes[1].Imports = []GPUImport{{Owner: 9, Host: true, Multicast: true}} }, false},
		"import of no piece": {func(g *GPU) { handOver(g).Processes[1].Imports = []GPUImport{{Owner: 1, Of: 2}} }, false},
		"import of nobody":   {func(g *GPU) { handOver(g).Processes[1].Imports = []GPUImport{{Owner: 7, Host: true}} }, false},
		"negative import":    {func(g *GPU) { handOver(g).Processes[1].Imports = []GPUImport{{Memory: -1, Owner: 1}} }, false},
		"import of less":     {func(g *GPU) { handOver(g).Processes[1].Imports = []GPUImport{{Owner: 1, Of: -1}} }, false},
		"endless import": {func(g *GPU) {
			handOver(g).Processes[1].Imports = []GPUImport{{Owner: 1, Of: record.MaxPieces + 1, Host: true}}
		}, false},
		"pieces by driver":   {func(g *GPU) { handOver(g).Engine = "driver" }, false},
		"no library":         {func(g *GPU) { handOver(g).Library = nil }, false},
		"library's digest":   {func(g *GPU) { handOver(g).Library.Digest = "sha256:1" }, false},
		"endless version":    {func(g *GPU) { handOver(g).Library.Version = strings.Repeat("1", 2000) }, false},
		"library of driver":  {func(g *GPU) { g.Library = &GPULibrary{Digest: testLibrary} }, false},
		"fallback of driver": {func(g *GPU) { g.Processes[0].Fallback = "no library" }, false},
		"endless fallback":   {func(g *GPU) { handOver(g).Processes[1].Fallback = strings.Repeat("x", 2000) }, false},
		"both":               {func(g *GPU) { handOver(g).Processes[0].Fallback = "no library" }, false},
		"a process twice":    {func(g *GPU) { handOver(g).Processes[1] = g.Processes[0] }, false},
		"no process":         {func(g *GPU) { handOver(g).Processes[0].PID = 0 }, false},
		"overlap":            {func(g *GPU) { handOver(g).Processes[0].Pieces[1].Address -= pieceUnit }, false},
		"descending":         {func(g *GPU) { slices.Reverse(handOver(g).Processes[0].Pieces) }, false},
		"empty piece":        {func(g *GPU) { handOver(g).Processes[0].Pieces[1].Size = 0 }, false},
		"negative piece":     {func(g *GPU) { handOver(g).Processes[0].Pieces[1].Size = -pieceUnit }, false},
		"half a page":        {func(g *GPU) { handOver(g).Processes[0].Pieces[1].Size += testPage }, false},
		"between pages":      {func(g *GPU) { handOver(g).Processes[0].Pieces[1].Address += testPage }, false},
		"beyond all memory":  {func(g *GPU) { handOver(g).Processes[0].Pieces[1].Size = 1 << 57 }, false},
		"address beyond":     {func(g *GPU) { handOver(g).Processes[0].Pieces[1].Address = math.MaxUint64 &^ (pieceUnit - 1) }, false},
		"piece elsewhere":    {func(g *GPU) { handOver(g).Processes[0].Pieces[1].Device = "GPU-c" }, false},
		"endless pieces":     {func(g *GPU) { handOver(g).Processes[0].Pieces = make([]GPUPiece, record.MaxPieces+1) }, false},
		"endless CDI device": {func(g *GPU) { g.CDI = make([]string, record.MaxGPUs+1) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := twoGPUs()
			c.change(g)
			data, err := json.Marshal(Config{Version: ConfigVersion, GPU: g})
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseConfig(data, digest.FromBytes(data))
			if c.ok != (err == nil) || !c.ok && !errdefs.IsDataLoss(err) {
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
	g := handOver(twoGPUs())
	g.Processes[0].Devices = []string{"GPU-a", "GPU-b"}
	if each, all = g.Need(); !slices.Equal(each, []int64{5<<30 + 2<<20, 1 << 32}) || all != 16<<30+2<<20 {
		t.Errorf("with pieces, Need = %v, %d", each, all)
	}
	g = twoGPUs()
	g.Devices[0].Used, g.Devices[1].Used = 9<<30, 7<<30
	if each, all = g.Need(); !slices.Equal(each, []int64{9 << 30, 7 << 30}) || all != 16<<30 {
		t.Errorf("Need = %v, %d", each, all)
	}
}
