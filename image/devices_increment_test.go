package image

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// weights are device memory of two processes and GPUs, of random bytes.
func weights(r *rand.Rand, size int64) deviceMemory {
	m := deviceMemory{gpu: twoGPUs(), contents: map[int][][]byte{}}
	m.gpu.Engine, m.gpu.Library = KeeperEngine, &GPULibrary{Version: "1.0", Digest: testLibrary}
	for i := range 2 {
		p := &m.gpu.Processes[i]
		for n := range 3 {
			p.Pieces = append(p.Pieces, GPUPiece{Address: 0x7f0000000000 + uint64(n)*1<<30, Size: size, Device: m.gpu.Devices[n%2].UUID})
			b := make([]byte, size)
			for at := 0; at < len(b); at += testPage {
				copy(b[at:], randomPage(r, 2))
			}
			m.contents[p.PID] = append(m.contents[p.PID], b)
		}
	}
	return m
}

// TestIncrementDevices: the second snapshot of weights that have not changed stores next to nothing, and of those that have, what has.
func TestIncrementDevices(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	o := PackOptions{SegmentSize: 2 << 20}
	r := rand.New(rand.NewPCG(9, 9))
	m, store := weights(r, size), newMemoryStore()
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": solid(r, 1<<30, 3)}}
	parent := mustPack(t, store, m.source(t, f.write(t), store, r, o), o)
	all := stored(t, store, parent, nil)
	for name, test := range map[string]struct {
		change func()
		most   int64 // bytes that are new
	}{
		"nothing":     {func() {}, 0},
		"a page":      {func() { m.contents[1][2][1<<20] ^= 1 }, 1 << 20},
		"some frames": {func() { m.contents[9][0][0] ^= 1; m.contents[9][1][size-1] ^= 1 }, 2 << 20},
		"host only":   {func() { f.maps["pagemap-1.img"][1<<30] = randomPage(r, 2) }, 1 << 20},
		"a piece elsewhere": {func() {
			m.gpu.Processes[1].Pieces[2].Address += 1 << 30
		}, 0},
		"a piece on another GPU": {func() { m.gpu.Processes[1].Pieces[2].Device = "GPU-b" }, 0},
		"memory that was on devices": {func() {
			for at := 0; at < size; at += testPage {
				f.maps["pagemap-1.img"][1<<31+uint64(at)] = bytes.Clone(m.contents[1][0][at : at+testPage])
			}
		}, size}, // a frame has one place only
	} {
		t.Run(name, func(t *testing.T) {
			was, images := deviceMemory{gpu: m.gpu, contents: maps.Clone(m.contents)}, f
			defer func() { m, f = was, images }()
			gpu := *was.gpu
			gpu.Processes = slices.Clone(gpu.Processes)
			for i := range gpu.Processes {
				gpu.Processes[i].Pieces = slices.Clone(gpu.Processes[i].Pieces)
			}
			m.gpu = &gpu
			f.maps = map[string]memory{"pagemap-1.img": maps.Clone(images.maps["pagemap-1.img"])}
			for pid, pieces := range was.contents {
				m.contents[pid] = nil
				for _, b := range pieces {
					m.contents[pid] = append(m.contents[pid], bytes.Clone(b))
				}
			}
			test.change()
			before := maps.Clone(store.blobs)
			o := o
			o.Parent = openParent(t, store, parent)
			dir := f.write(t)
			d := mustPack(t, store, m.source(t, dir, store, r, o), o)
			if got := stored(t, store, d, before); got > test.most || got > all/20 && name == "nothing" {
				t.Errorf("%d bytes of %d are stored, at most %d should be", got, all, test.most)
			}
			wants(t, store, d, dir)
			m.readBack(t, &fileStore{memoryStore: store, dir: t.TempDir()}, d, r)
		})
	}
}

// TestIncrementChainOfDevices: with parents of parents, pieces that grow, and all kept bit for bit.
func TestIncrementChainOfDevices(t *testing.T) {
	t.Parallel()
	o := PackOptions{SegmentSize: 2 << 20}
	r := rand.New(rand.NewPCG(10, 9))
	m, store := weights(r, 2<<20), newMemoryStore()
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": solid(r, 1<<30, 3)}}
	for range 3 {
		dir := f.write(t)
		d := mustPack(t, store, m.source(t, dir, store, r, o), o)
		wants(t, store, d, dir)
		m.readBack(t, &fileStore{memoryStore: store, dir: t.TempDir()}, d, r)
		for range 4 {
			b := m.contents[1+8*r.IntN(2)][r.IntN(3)]
			copy(b[r.IntN(len(b)/testPage)*testPage:], randomPage(r, 2))
		}
		p := &m.gpu.Processes[r.IntN(2)]
		n := r.IntN(3)
		p.Pieces[n].Size += 1 << 20
		m.contents[p.PID][n] = append(m.contents[p.PID][n], randomContent(r, 1<<20)...)
		o.Parent = openParent(t, store, d)
	}
}

// stored is how much of a snapshot's segments was not there before, bytes.
func stored(t *testing.T, store *memoryStore, d ocispec.Descriptor, before map[digest.Digest][]byte) (n int64) {
	t.Helper()
	s, err := Open(context.Background(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range s.Segments() {
		if _, old := before[l.Digest]; !old {
			n += l.Size
		}
	}
	return n
}
