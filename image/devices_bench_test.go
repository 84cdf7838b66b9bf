package image_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// BenchmarkDevices reads device memory out of a store with as many goroutines as there are cores, as what loads it does: random bytes, of
// which weights are the like, and small numbers in 8 bytes each.
func BenchmarkDevices(b *testing.B) {
	const all, part = 1 << 30, 8 << 20
	random, numbers := make([]byte, part), make([]byte, part)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(random)
	for i := 0; i < part; i += 8 {
		binary.LittleEndian.PutUint64(numbers[i:], r.Uint64()%128256)
	}
	for name, content := range map[string][]byte{"random": random, "numbers": numbers} {
		b.Run(name, func(b *testing.B) {
			images := b.TempDir()
			if err := os.WriteFile(filepath.Join(images, "inventory.img"), []byte{1}, 0o600); err != nil {
				b.Fatal(err)
			}
			s, err := store.Open(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			gpu := &image.GPU{
				Engine: image.KeeperEngine, Library: &image.GPULibrary{Version: "1.0", Digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
				Devices:   []image.GPUDevice{{UUID: "GPU-a"}},
				Processes: []image.GPUProcess{{PID: 1, Devices: []string{"GPU-a"}, Pieces: []image.GPUPiece{{Address: 1 << 40, Size: all, Device: "GPU-a"}}}},
			}
			in, err := image.NewDeviceIntake(b.Context(), s, b.TempDir(), gpu, 4096, image.PackOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer in.Close()
			for at := int64(0); at < all; at += part {
				if err := in.Bytes(0, at, content); err != nil {
					b.Fatal(err)
				}
			}
			if err := in.End(); err != nil {
				b.Fatal(err)
			}
			config := image.Config{Spec: []byte("{}"), Host: image.Host{PageSize: 4096}, GPU: gpu}
			d, err := image.Pack(b.Context(), s, image.PackSource{Images: images, Device: in, Config: config}, image.PackOptions{})
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(all)
			for b.Loop() {
				devices, err := image.OpenDevices(b.Context(), s, d)
				if err != nil {
					b.Fatal(err)
				}
				var next atomic.Int64
				var work sync.WaitGroup
				for range runtime.GOMAXPROCS(0) {
					work.Go(func() {
						reader, err := devices.Reader()
						if err != nil {
							b.Error(err)
							return
						}
						defer reader.Close()
						buf := make([]byte, part)
						for at := next.Add(part) - part; at < all; at = next.Add(part) - part {
							if _, err := reader.Read(0, at, buf); err != nil {
								b.Error(err)
							}
						}
					})
				}
				work.Wait()
				devices.Close()
			}
		})
	}
}
