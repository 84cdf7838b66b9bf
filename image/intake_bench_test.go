package image_test

import (
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// BenchmarkIntake takes in random memory through a socket, as it comes from CRIU: how long processes would stand still, and how long it
// takes until everything is stored.
func BenchmarkIntake(b *testing.B) {
	const all, part = 4 << 30, 64 << 20
	content := make([]byte, part)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(content)
	b.SetBytes(all)
	for b.Loop() {
		s, err := store.Open(b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			b.Fatal(err)
		}
		var ends [2]net.Conn
		for i, fd := range pair {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
			f := os.NewFile(uintptr(fd), "socket")
			if ends[i], err = net.FileConn(f); err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
		go func() {
			for range all / part {
				_, _ = ends[0].Write(content)
			}
			ends[0].Close()
		}()
		in, err := image.NewIntake(b.Context(), s, b.TempDir(), 4096, image.PackOptions{})
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if err := in.Begin(1); err != nil {
			b.Fatal(err)
		}
		if err := in.Pages(1<<32, all/4096, ends[1]); err != nil {
			b.Fatal(err)
		}
		if err := in.End(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "frozen-s/op")
		if err := image.Stored(in); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "stored-s/op")
		in.Close()
		ends[1].Close()
	}
}

// BenchmarkDeviceIntake takes in device memory as a keeper sends it: 16 windows by turns, 8 MiB at once. How long until all is taken out of
// the keeper's hands, and until everything is stored.
func BenchmarkDeviceIntake(b *testing.B) {
	random := make([]byte, 64<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for name, content := range map[string][]byte{"random": random, "zeros": make([]byte, 64<<20)} {
		b.Run(name, func(b *testing.B) {
			const all, window, chunk = 4 << 30, 256 << 20, 8 << 20
			gpu := &image.GPU{
				Engine: image.KeeperEngine, Devices: []image.GPUDevice{{UUID: "GPU-a"}},
				Processes: []image.GPUProcess{{PID: 1, Devices: []string{"GPU-a"}, Pieces: []image.GPUPiece{{Address: 1 << 40, Size: all, Device: "GPU-a"}}}},
			}
			b.SetBytes(all)
			for b.Loop() {
				s, err := store.Open(b.TempDir())
				if err != nil {
					b.Fatal(err)
				}
				in, err := image.NewDeviceIntake(b.Context(), s, b.TempDir(), gpu, 4096, image.PackOptions{})
				if err != nil {
					b.Fatal(err)
				}
				slots := make(chan []byte, 16)
				for n := range cap(slots) {
					slots <- content[n%8*chunk:][:chunk]
				}
				start := time.Now()
				for at := int64(0); at < window; at += chunk {
					for w := int64(0); w < all; w += window {
						slot := <-slots
						if err := in.Take(0, w+at, slot, func() { slots <- slot }); err != nil {
							b.Fatal(err)
						}
					}
				}
				if err := in.End(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(time.Since(start).Seconds(), "taken-s/op")
				if err := image.DevicesStored(in); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(time.Since(start).Seconds(), "stored-s/op")
				in.Close()
			}
		})
	}
}
