package image

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// packedDevices is a small snapshot with device memory: process 1 has two pieces on the first GPU and one on the second.
func packedDevices(t testing.TB) (*memoryStore, ocispec.Descriptor) {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 7))
	m := deviceMemory{gpu: twoGPUs(), contents: map[int][][]byte{}}
	m.gpu.Engine, m.gpu.Library = KeeperEngine, &GPULibrary{Version: "1.0", Digest: testLibrary}
	for i, p := range []GPUPiece{{Address: 1 << 30, Size: 1 << 20, Device: "GPU-a"}, {Address: 2 << 30, Size: 2 << 20, Device: "GPU-a"}, {Address: 3 << 30, Size: 1 << 20, Device: "GPU-b"}} {
		m.gpu.Processes[0].Pieces = append(m.gpu.Processes[0].Pieces, p)
		m.contents[1] = append(m.contents[1], randomContent(r, p.Size))
		m.contents[1][i][0] = 1 // no piece is all zeros
	}
	store := newMemoryStore()
	dir := fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(r, 1<<30, 300)}}.write(t)
	return store, mustPack(t, store, m.source(t, dir, store, r, PackOptions{}), PackOptions{})
}

// TestForgedDevices: an index and a config that contradict each other about device memory are refused, whatever their digests.
func TestForgedDevices(t *testing.T) {
	t.Parallel()
	sound, d := packedDevices(t)
	pieces := func(c *Config) []GPUPiece { return c.GPU.Processes[0].Pieces }
	for name, change := range map[string]func(*Config){
		"sound":           func(*Config) {},
		"a piece moved":   func(c *Config) { pieces(c)[1].Address += 64 << 20 },
		"a piece nearer":  func(c *Config) { pieces(c)[1].Address -= pieceUnit },
		"a piece longer":  func(c *Config) { pieces(c)[1].Size += pieceUnit },
		"a piece shorter": func(c *Config) { pieces(c)[1].Size -= pieceUnit },
		"a border moved":  func(c *Config) { pieces(c)[0].Size += pieceUnit; pieces(c)[1].Size -= pieceUnit },
		"another GPU":     func(c *Config) { pieces(c)[2].Device = "GPU-a" },
		"GPUs exchanged":  func(c *Config) { c.GPU.Devices[0].UUID, c.GPU.Devices[1].UUID = "GPU-b", "GPU-a" },
		"another process": func(c *Config) { c.GPU.Processes[0].PID = 2 },
		"a piece less":    func(c *Config) { c.GPU.Processes[0].Pieces = pieces(c)[:2] },
		"no pieces":       func(c *Config) { c.GPU.Processes[0].Pieces = nil },
		"no GPUs":         func(c *Config) { c.GPU = nil },
		"by the driver":   func(c *Config) { c.GPU.Engine = DriverEngine },
		"no library":      func(c *Config) { c.GPU.Library = nil },
		"another sum":     func(c *Config) { c.Memory.Device += testPage },
		"a negative sum":  func(c *Config) { c.Memory.Device = -1 },
		"more of a second": func(c *Config) {
			c.GPU.Processes[1].Pieces = []GPUPiece{{Address: 1 << 30, Size: 1 << 20, Device: "GPU-a"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := sound.clone()
			s, err := Open(context.Background(), store, d)
			if err != nil {
				t.Fatal(err)
			}
			c, manifest := s.Config, s.Manifest
			change(&c)
			b, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			manifest.Config = store.put(b, manifest.Config)
			if b, err = json.Marshal(manifest); err != nil {
				t.Fatal(err)
			}
			forged := store.put(b, d)
			devices, err := OpenDevices(context.Background(), &fileStore{memoryStore: store, dir: t.TempDir()}, forged)
			if err == nil {
				devices.Close()
			}
			for _, err := range []error{err, Verify(context.Background(), store, forged, nil)} {
				if name == "sound" {
					if err != nil {
						t.Error(err)
					}
				} else if !errdefs.IsDataLoss(err) || !hinted(err) {
					t.Errorf("gives %v", err)
				}
			}
		})
	}
}

// TestUnknownEngine: a snapshot of an engine to come says so.
func TestUnknownEngine(t *testing.T) {
	_, err := parseConfig([]byte(`{"version":1,"gpu":{"engine":"magic"}}`), "")
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "magic") {
		t.Errorf("gives %v", err)
	}
}

// TestDevicesRefused: device memory that is not whole, or not in its order, makes no snapshot.
func TestDevicesRefused(t *testing.T) {
	t.Parallel()
	ctx, dir := context.Background(), SampleImages(t)
	gpu := twoGPUs()
	gpu.Engine, gpu.Library = KeeperEngine, &GPULibrary{Digest: testLibrary}
	gpu.Processes[0].Pieces = []GPUPiece{{Address: 1 << 30, Size: 1 << 20, Device: "GPU-a"}, {Address: 1<<30 + 2<<20, Size: 1 << 20, Device: "GPU-a"}}
	data := make([]byte, 1<<20)
	for name, test := range map[string]struct {
		bytes   func(in *DeviceIntake) error // nil: nothing comes
		source  func(src *PackSource)
		options PackOptions
		is      func(error) bool
	}{
		"not all":        {bytes: func(in *DeviceIntake) error { return in.Bytes(0, 0, data) }, is: errdefs.IsInternal},
		"a gap":          {bytes: func(in *DeviceIntake) error { return in.Bytes(0, testPage, data[:testPage]) }, is: errdefs.IsInvalidArgument},
		"half a page":    {bytes: func(in *DeviceIntake) error { return in.Bytes(0, 0, data[:100]) }, is: errdefs.IsInvalidArgument},
		"no such piece":  {bytes: func(in *DeviceIntake) error { return in.Bytes(2, 0, data) }, is: errdefs.IsInvalidArgument},
		"no piece":       {bytes: func(in *DeviceIntake) error { return in.Bytes(-1, 0, data) }, is: errdefs.IsInvalidArgument},
		"beyond it":      {bytes: func(in *DeviceIntake) error { return in.Bytes(0, testPage, data) }, is: errdefs.IsInvalidArgument},
		"zeros beyond":   {bytes: func(in *DeviceIntake) error { return in.Zero(0, 0, int64(len(data))+testPage) }, is: errdefs.IsInvalidArgument},
		"less than none": {bytes: func(in *DeviceIntake) error { return in.Zero(0, testPage, -testPage) }, is: errdefs.IsInvalidArgument},
		"before it":      {bytes: func(in *DeviceIntake) error { return in.Bytes(0, -testPage, data) }, is: errdefs.IsInvalidArgument},
		"twice":          {bytes: func(in *DeviceIntake) error { _ = in.Bytes(0, 0, data); return in.Bytes(0, 0, data) }, is: errdefs.IsInvalidArgument},
		"again": {bytes: func(in *DeviceIntake) error {
			return errors.Join(in.Bytes(0, 0, data), in.Bytes(1, 0, data), in.Bytes(0, 0, data))
		}, is: errdefs.IsInvalidArgument},
		"the last first": {bytes: func(in *DeviceIntake) error { return in.Bytes(1, 0, data) }, is: errdefs.IsInvalidArgument},
		"none":           {source: func(src *PackSource) { src.Device = nil }, is: errdefs.IsInvalidArgument},
		"not wanted":     {source: func(src *PackSource) { src.Config.GPU = nil }, is: errdefs.IsInvalidArgument},
		"other segments": {options: PackOptions{SegmentSize: 1 << 20}, is: errdefs.IsInvalidArgument},
		"not compressed": {options: PackOptions{Compression: "none"}, is: errdefs.IsInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			store := newMemoryStore()
			in, err := NewDeviceIntake(ctx, store, t.TempDir(), gpu, testPage, PackOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if test.bytes != nil {
				err = test.bytes(in)
			}
			if end := in.End(); err == nil {
				err = end
			}
			src := testSource(dir)
			src.Config.GPU, src.Device = gpu, in
			if test.source != nil {
				test.source(&src)
			}
			if err == nil {
				_, err = Pack(ctx, store, src, test.options)
			}
			if !test.is(err) {
				t.Errorf("gives %v", err)
			}
			in.Close()
			if store.open != 0 {
				t.Errorf("%d blobs are open", store.open)
			}
		})
	}
}
