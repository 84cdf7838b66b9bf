package image

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/format"
)

// running makes two processes with pieces of whole frames on two GPUs, as they are while they run.
func running(r *rand.Rand) deviceMemory {
	m := deviceMemory{gpu: twoGPUs(), contents: map[int][][]byte{}}
	m.gpu.Engine, m.gpu.Library = KeeperEngine, &GPULibrary{Version: "1.0", Digest: testLibrary}
	for i := range 2 {
		p := &m.gpu.Processes[i]
		at := uint64(0x7f0000000000)
		for range 1 + r.IntN(5) {
			content := randomContent(r, int64(1+r.IntN(4))*2<<20)
			p.Pieces = append(p.Pieces, GPUPiece{Address: at, Size: int64(len(content)), Device: m.gpu.Devices[r.IntN(2)].UUID})
			m.contents[p.PID] = append(m.contents[p.PID], content)
			at += uint64(len(content)) + uint64(r.IntN(2))*2<<20
		}
	}
	return m
}

// later returns what has become of it: some frames have changed, some pieces are gone, others new, and the GPUs in another order.
func (m deviceMemory) later(r *rand.Rand) deviceMemory {
	gpu := *m.gpu
	now := deviceMemory{gpu: &gpu, contents: maps.Clone(m.contents)}
	gpu.Devices, gpu.Processes = slices.Clone(gpu.Devices), slices.Clone(gpu.Processes)
	if r.IntN(2) == 0 {
		slices.Reverse(gpu.Devices)
	}
	for i := range 2 {
		p := &gpu.Processes[i]
		contents := slices.Clone(m.contents[p.PID])
		p.Pieces = slices.Clone(p.Pieces)
		if len(p.Pieces) > 1 && r.IntN(2) == 0 {
			n := r.IntN(len(p.Pieces))
			p.Pieces, contents = slices.Delete(p.Pieces, n, n+1), slices.Delete(contents, n, n+1)
		}
		if r.IntN(2) == 0 {
			last := p.Pieces[len(p.Pieces)-1]
			p.Pieces = append(p.Pieces, GPUPiece{Address: last.Address + uint64(last.Size) + 64<<20, Size: 2 << 20, Device: last.Device})
			contents = append(contents, randomContent(r, 2<<20))
		}
		for n := range contents {
			contents[n] = bytes.Clone(contents[n])
			if often := r.IntN(3); often > 0 {
				for at := r.IntN(format.MaxFrame); at < len(contents[n]); at += 1 + r.IntN(often*often*3*format.MaxFrame/2) {
					contents[n][at]++
				}
			}
		}
		now.contents[p.PID] = contents
	}
	return now
}

// takeChanges takes in m after what before has taken in, of which was is what it had: a frame that is the same is named, as a keeper does.
func (m deviceMemory) takeChanges(t *testing.T, in *DeviceIntake, was deviceMemory) {
	t.Helper()
	then := map[OwnedPiece][]byte{}
	for _, p := range was.gpu.Processes {
		for n, piece := range p.Pieces {
			then[OwnedPiece{GPUPiece: piece, PID: p.PID}] = was.contents[p.PID][n]
		}
	}
	n := 0
	for _, p := range m.gpu.Processes {
		for i, piece := range p.Pieces {
			content, before := m.contents[p.PID][i], then[OwnedPiece{GPUPiece: piece, PID: p.PID}]
			for at := 0; at < len(content); at += format.MaxFrame {
				frame := content[at : at+format.MaxFrame]
				err := error(nil)
				if before != nil && bytes.Equal(frame, before[at:at+format.MaxFrame]) {
					err = in.Same(n, int64(at), format.MaxFrame)
				} else {
					err = in.Bytes(n, int64(at), frame)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			n++
		}
	}
	if err := in.End(); err != nil {
		t.Fatal(err)
	}
}

// TestDevicesAhead: what was taken in while the processes ran, and what has changed since, make the snapshot of the moment when they stood still, which has no byte that no frame uses.
func TestDevicesAhead(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(9, seed))
			store, o := newMemoryStore(), PackOptions{SegmentSize: 4 << 20}
			ran := running(r)
			if seed%2 == 1 { // some of it is in a snapshot before
				o.Parent = openParent(t, store, mustPack(t, store, ran.source(t, SampleImages(t), store, r, o), o))
			}
			stood := ran.later(r)
			before := ran.takeIn(t, store, r, o)
			in, err := NewDeviceIntake(t.Context(), store, t.TempDir(), stood.gpu, testPage, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(in.Close)
			in.After(before)
			stood.takeChanges(t, in, ran)
			src := testSource(SampleImages(t))
			src.Config.GPU, src.Device = stood.gpu, in
			d := mustPack(t, store, src, o)
			if err := Verify(t.Context(), store, d, nil); err != nil {
				t.Error(err)
			}
			stood.readBack(t, store, d, r)
		})
	}
}

// TestDevicesAheadRefuses: only whole frames are the same, of what was taken in before.
func TestDevicesAheadRefuses(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 77))
	store, o := newMemoryStore(), PackOptions{SegmentSize: 4 << 20}
	ran := running(r)
	elsewhere := ran.later(r)
	elsewhere.gpu.Processes[0].Pieces[0].Address -= 64 << 20
	for name, test := range map[string]struct {
		now    deviceMemory
		before bool
		n      int64
	}{
		"nothing before": {ran, false, format.MaxFrame},
		"half a frame":   {ran, true, format.MaxFrame / 2},
		"elsewhere":      {elsewhere, true, format.MaxFrame},
	} {
		in, err := NewDeviceIntake(t.Context(), store, t.TempDir(), test.now.gpu, testPage, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(in.Close)
		if test.before {
			in.After(ran.takeIn(t, store, r, o))
		}
		if err := in.Same(0, 0, test.n); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := in.End(); err == nil {
			t.Errorf("%s: it goes on", name)
		}
	}
}
