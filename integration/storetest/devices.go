package storetest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// PutDevices makes a snapshot, under the name ref, of a process that had nothing but device memory, and gives what is in its pieces.
func PutDevices(t testing.TB, s *store.Store, ref string) (ocispec.Descriptor, [][]byte) {
	t.Helper()
	const size = 3 << 20
	images := t.TempDir()
	if err := os.WriteFile(filepath.Join(images, "inventory.img"), []byte{1}, 0o600); err != nil {
		t.Fatal(err)
	}
	gpu := &image.GPU{
		Engine: image.KeeperEngine, Library: &image.GPULibrary{Version: "1.0", Digest: ocispec.DescriptorEmptyJSON.Digest},
		Devices:   []image.GPUDevice{{UUID: "GPU-a"}, {UUID: "GPU-b"}},
		Processes: []image.GPUProcess{{PID: 1, Devices: []string{"GPU-a", "GPU-b"}}},
	}
	var contents [][]byte
	for n := range 4 {
		gpu.Processes[0].Pieces = append(gpu.Processes[0].Pieces, image.GPUPiece{Address: uint64(n) << 30, Size: size, Device: gpu.Devices[n%2].UUID})
		contents = append(contents, append(Bytes(uint64(n), size/2), make([]byte, size/2)...))
	}
	op, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	in, err := image.NewDeviceIntake(t.Context(), s, t.TempDir(), gpu, 4096, image.PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for n, b := range contents {
		if err := in.Bytes(n, 0, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.End(); err != nil {
		t.Fatal(err)
	}
	config := image.Config{Spec: []byte("{}"), Host: image.Host{PageSize: 4096}, GPU: gpu}
	d, err := image.Pack(t.Context(), s, image.PackSource{Images: images, Device: in, Config: config}, image.PackOptions{})
	if err == nil {
		err = s.Tag(t.Context(), d, ref)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d, contents
}

// SameDevices compares the device memory of a snapshot that src has.
func SameDevices(t testing.TB, src image.Fetcher, d ocispec.Descriptor, contents [][]byte) {
	t.Helper()
	devices, err := image.OpenDevices(t.Context(), src, d)
	if err != nil {
		t.Fatal(err)
	}
	defer devices.Close()
	r, err := devices.Reader()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n := len(devices.Pieces()); n != len(contents) {
		t.Fatalf("%d pieces, not %d", n, len(contents))
	}
	for n, want := range contents {
		got := make([]byte, len(want))
		if _, err := r.Read(n, 0, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("piece %d is another, %v", n, err)
		}
	}
}
