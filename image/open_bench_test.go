package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// withoutSegments is a store that opens segments it does not have.
type withoutSegments struct{ *memoryStore }

func (s withoutSegments) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if d.MediaType == MediaTypeSegment {
		return struct {
			*bytes.Reader
			io.Closer
		}{bytes.NewReader(nil), io.NopCloser(nil)}, nil
	}
	return s.memoryStore.Fetch(ctx, d)
}

// modelServer stores all but the segments of a snapshot of a process with 19 GiB in 227 pieces on a GPU, and 1 GiB of memory between
// pages of zeros. It gives what describes the latter.
func modelServer(tb testing.TB, store *memoryStore) (ocispec.Descriptor, []*format.Pagemap) {
	tb.Helper()
	const page, mib = 4096, int64(1 << 20)
	r := rand.New(rand.NewPCG(1, 1))
	gpu := &GPU{
		Engine: KeeperEngine, Library: &GPULibrary{Version: "1.0", Digest: testLibrary}, Devices: []GPUDevice{{UUID: "GPU-a"}},
		Processes: []GPUProcess{{PID: 1, Devices: []string{"GPU-a"}}},
	}
	for n := range uint64(227) {
		gpu.Processes[0].Pieces = append(gpu.Processes[0].Pieces, GPUPiece{Address: 0x7f0000000000 + n*(86<<20), Size: 86 << 20, Device: "GPU-a"})
	}
	host := &format.Pagemap{Name: "pagemap-1.img", Pages: 1, Count: 1 << 18, Runs: []format.PageRun{{Addr: 1 << 32, Count: 1 << 18}}}
	host.Lazy = host.Runs
	var packed []packedSegment
	for _, m := range append([]*format.Pagemap{host}, deviceMaps(gpu, page)...) {
		run, window := m.Runs[0], ^uint64(0)
		for at := int64(0); at < run.Count*page; at += mib {
			addr := run.Addr + uint64(at)
			if addr/deviceSegment != window {
				window = addr / deviceSegment
				d := ocispec.Descriptor{MediaType: MediaTypeSegment, Digest: digest.FromString(fmt.Sprint(len(packed)))}
				packed = append(packed, packedSegment{desc: d})
			}
			s := &packed[len(packed)-1]
			f := format.Frame{Offset: s.desc.Size, Check: r.Uint64()}
			for i := range f.Digest {
				f.Digest[i] = byte(r.Uint32())
			}
			first, each := at/page, int64(256)
			if m == host {
				each = 16
			}
			for i := int64(0); i < 256; i += each {
				count := each
				if m == host {
					count -= 2
				}
				f.Runs = append(f.Runs, format.Run{File: m.Pages, First: first + i, Count: count, Addr: addr + uint64(i*page)})
				f.Raw += count * page
			}
			f.Stored = f.Raw
			s.desc.Size += f.Stored
			s.raw += f.Raw
			s.frames = append(s.frames, f)
		}
	}
	x := newIndex(packed, []memoryPart{{maps: []*format.Pagemap{host}}, {maps: deviceMaps(gpu, page)}}, page)
	ctx := context.Background()
	layers := make([]ocispec.Descriptor, 2)
	var err error
	for i, l := range []struct {
		mediaType, title string
		write            func(io.Writer) error
	}{
		{MediaTypeIndex, titleIndex, func(w io.Writer) error { return format.EncodeIndex(w, x) }},
		{MediaTypeCRIU, titleCRIU, func(io.Writer) error { return nil }},
	} {
		if layers[i], err = writeLayer(ctx, store, l.mediaType, l.title, 2, l.write); err != nil {
			tb.Fatal(err)
		}
	}
	for _, s := range packed {
		layers = append(layers, s.desc)
	}
	cfg := Config{Version: ConfigVersion, Spec: []byte("{}"), Host: Host{PageSize: page}, Memory: totals(x), GPU: gpu}
	config, err := writeJSON(ctx, store, MediaTypeConfig, cfg, maxConfig)
	if err != nil {
		tb.Fatal(err)
	}
	d, err := writeJSON(ctx, store, ocispec.MediaTypeImageManifest, newManifest(cfg, config, layers, nil), maxManifest)
	if err != nil {
		tb.Fatal(err)
	}
	return d, []*format.Pagemap{host}
}

// BenchmarkOpenDevices opens the device memory of a model server, as what loads it does.
func BenchmarkOpenDevices(b *testing.B) {
	store := newMemoryStore()
	d, _ := modelServer(b, store)
	b.ReportAllocs()
	for b.Loop() {
		devices, err := OpenDevices(b.Context(), withoutSegments{store}, d)
		if err != nil {
			b.Fatal(err)
		}
		devices.Close()
	}
}

// BenchmarkReadIndex reads the index of a model server.
func BenchmarkReadIndex(b *testing.B) {
	store := newMemoryStore()
	d, _ := modelServer(b, store)
	s, err := Open(b.Context(), store, d)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(s.Index().Size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.ReadIndex(b.Context(), store); err != nil {
			b.Fatal(err)
		}
	}
}
