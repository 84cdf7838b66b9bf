package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

const testLibrary = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// deviceMemory is device memory of some processes: what is in each of their pieces, in order.
type deviceMemory struct {
	gpu      *GPU
	contents map[int][][]byte // by pid
}

// randomDevices makes processes with random pieces, of which some touch each other, with zeros, text and random bytes in them.
func randomDevices(r *rand.Rand, most int) deviceMemory {
	m := deviceMemory{gpu: twoGPUs(), contents: map[int][][]byte{}}
	m.gpu.Engine, m.gpu.Library = KeeperEngine, &GPULibrary{Version: "1.0", Digest: testLibrary}
	m.gpu.Processes[1].Fallback = "it has no library"
	for _, i := range []int{2, 0} { // pids do not ascend
		p := &m.gpu.Processes[i]
		if r.IntN(4) == 0 {
			continue
		}
		at := uint64(r.IntN(1<<20)) * pieceUnit
		for range 1 + r.IntN(6) {
			if r.IntN(2) == 0 {
				at += uint64(1+r.IntN(1<<12)) * pieceUnit
			}
			content := randomContent(r, int64(1+r.IntN(most))*pieceUnit)
			p.Pieces = append(p.Pieces, GPUPiece{Address: at, Size: int64(len(content)), Device: m.gpu.Devices[r.IntN(2)].UUID})
			m.contents[p.PID] = append(m.contents[p.PID], content)
			at += uint64(len(content))
		}
	}
	return m
}

func randomContent(r *rand.Rand, size int64) []byte {
	var b []byte
	for int64(len(b)) < size {
		kind := r.IntN(3)
		for range 1 + r.IntN(400) {
			b = append(b, randomPage(r, kind)...)
		}
	}
	return b[:size]
}

// empty tells whether nothing was handed over.
func (m deviceMemory) empty() bool { return len(m.contents) == 0 }

// takeIn gives what has taken all of it in, in pieces of random length, with those of the GPUs mixed at random.
func (m deviceMemory) takeIn(t testing.TB, dst BlobStore, r *rand.Rand, o PackOptions) *DeviceIntake {
	t.Helper()
	in, err := NewDeviceIntake(context.Background(), dst, t.TempDir(), m.gpu, testPage, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	var there atomic.Int64
	if err := m.send(in, r, &there); err != nil {
		t.Fatal(err)
	}
	if err := in.End(); err != nil {
		t.Fatal(err)
	}
	if n := there.Load(); n != 0 {
		t.Errorf("%d parts were not released once each", n)
	}
	return in
}

// send sends all pieces as a keeper would: windows by turns, each in order. there counts the parts that are not released.
func (m deviceMemory) send(in *DeviceIntake, r *rand.Rand, there *atomic.Int64) error {
	type span struct {
		piece    int
		from, to int64
	}
	var contents [][]byte
	for _, p := range m.gpu.Processes {
		contents = append(contents, m.contents[p.PID]...)
	}
	next := map[windowKey][]span{}
	var keys []windowKey // in the order of addresses, so that the same source of chance gives the same
	for i, p := range devicePieces(m.gpu) {
		for from := int64(0); from < p.Size; {
			key, to := p.window(from), from+p.within(from, p.Size-from)
			if next[key] == nil {
				keys = append(keys, key)
			}
			next[key] = append(next[key], span{i, from, to})
			from = to
		}
	}
	for len(keys) > 0 {
		i := r.IntN(len(keys))
		s := &next[keys[i]][0]
		n := min(int64(1+r.IntN(300))*testPage, s.to-s.from)
		buf := bytes.Clone(contents[s.piece][s.from : s.from+n])
		there.Add(1)
		released := func() {
			clear(buf) // it is used again
			there.Add(-1)
		}
		if !slices.ContainsFunc(buf, func(b byte) bool { return b != 0 }) && r.IntN(2) == 0 {
			if err := in.Zero(s.piece, s.from, n); err != nil {
				return err
			}
			released()
		} else if r.IntN(4) > 0 {
			if err := in.Take(s.piece, s.from, buf, released); err != nil {
				return err
			}
		} else {
			if err := in.Bytes(s.piece, s.from, buf); err != nil {
				return err
			}
			released()
		}
		if s.from += n; s.from < s.to {
			continue
		}
		if next[keys[i]] = next[keys[i]][1:]; len(next[keys[i]]) == 0 {
			keys = slices.Delete(keys, i, i+1)
		}
	}
	return nil
}

// source adds the device memory to the snapshot of some images.
func (m deviceMemory) source(t testing.TB, dir string, dst BlobStore, r *rand.Rand, o PackOptions) PackSource {
	t.Helper()
	src := testSource(dir)
	src.Config.GPU = m.gpu
	if !m.empty() {
		src.Device = m.takeIn(t, dst, r, o)
	}
	return src
}

// openedDevices opens the device memory of a snapshot, until the test ends.
func openedDevices(t *testing.T, src Fetcher, d ocispec.Descriptor) (*Devices, *DevicesReader) {
	t.Helper()
	devices, err := OpenDevices(t.Context(), src, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(devices.Close)
	reader, err := devices.Reader()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Close)
	return devices, reader
}

// readBack compares the device memory of a snapshot.
func (m deviceMemory) readBack(t *testing.T, src Fetcher, d ocispec.Descriptor, r *rand.Rand) {
	t.Helper()
	devices, reader := openedDevices(t, src, d)
	var contents [][]byte
	for _, p := range m.gpu.Processes {
		contents = append(contents, m.contents[p.PID]...)
	}
	pieces := devices.Pieces()
	if len(pieces) != len(contents) {
		t.Fatalf("it has %d pieces, not %d", len(pieces), len(contents))
	}
	for i, want := range contents {
		for at := 0; at < len(want); {
			n := min((1+r.IntN(2000))*testPage, len(want)-at)
			got := bytes.Repeat([]byte{0xaa}, n)
			some, err := reader.Read(i, int64(at), got)
			if err != nil {
				t.Fatal(err)
			}
			if !some {
				if !bytes.Equal(got, bytes.Repeat([]byte{0xaa}, n)) {
					t.Error("it writes where there is nothing")
				}
				clear(got)
			}
			if !bytes.Equal(got, want[at:at+n]) {
				t.Fatalf("piece %d: %d bytes from %d on are others", i, n, at)
			}
			at += n
		}
	}
	for _, wrong := range []struct {
		piece  int
		offset int64
	}{{-1, 0}, {len(pieces), 0}, {0, -testPage}, {0, math.MaxInt64}} {
		if _, err := reader.Read(wrong.piece, wrong.offset, make([]byte, testPage)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("piece %d from %d on gives %v", wrong.piece, wrong.offset, err)
		}
	}
}

// TestDevicesArriving reads device memory whose segments are still coming: every frame is verified, and parts are there when all that they need of each
// segment is.
func TestDevicesArriving(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 5))
	m := randomDevices(r, 16)
	for m.empty() {
		m = randomDevices(r, 16)
	}
	o := PackOptions{SegmentSize: 1 << 20}
	store := newMemoryStore()
	d := mustPack(t, store, m.source(t, SampleImages(t), store, r, o), o)
	for _, damaged := range []bool{false, true} {
		coming := &arrivingStore{fileStore: &fileStore{memoryStore: store, dir: t.TempDir()}, damaged: damaged}
		devices, reader := openedDevices(t, coming, d)
		read := 0
		for i, p := range devices.Pieces() {
			const part = 1 << 18
			for at := int64(0); at < p.Size; at += part {
				n := min(part, p.Size-at)
				needs := devices.Part(i, at, n)
				coming.there = 0
				there := needs.There()
				some, err := reader.Read(i, at, make([]byte, n))
				if there == (some || err != nil) {
					t.Errorf("nothing has come: it is there: %v, and something was read: %v", there, some)
				}
				if some || err != nil {
					read++
				}
				if err != nil && !errdefs.IsDataLoss(err) || err != nil != damaged && !there {
					t.Errorf("damaged for good: %v, and it gives %v", damaged, err)
				}
				for _, need := range needs {
					if coming.there = need.end; need.segment.There(need.end+1) || len(needs) == 1 && !needs.There() {
						t.Error("more is needed than that")
					}
				}
				if coming.there = 1 << 40; !needs.There() {
					t.Error("it is not there")
				}
			}
		}
		if read == 0 {
			t.Error("nothing is read")
		}
	}
	m.readBack(t, &arrivingStore{fileStore: &fileStore{memoryStore: store, dir: t.TempDir()}}, d, r)
}

// TestDevices: random pieces with random contents come back bit for bit, beside the memory of processes, which is as without.
func TestDevices(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			dir := SampleImages(t)
			m := randomDevices(r, 1<<(1+r.IntN(6)))
			o := PackOptions{SegmentSize: 1 << (20 + r.IntN(5)), Workers: 1 + r.IntN(4)}
			if r.IntN(3) == 0 {
				o.Compression = "none"
			}
			store := newMemoryStore()
			src := m.source(t, dir, store, r, o)
			if r.IntN(2) == 0 {
				in := newIntake(t, store, o)
				if err := stream(t, in, dir, r); err != nil {
					t.Fatal(err)
				}
				src.Images, src.Memory = withoutPages(t, dir), in
			}
			d := mustPack(t, store, src, o)
			again := mustPack(t, newMemoryStore(), m.source(t, dir, newMemoryStore(), r, o), o)
			if d.Digest != again.Digest {
				t.Errorf("it makes %s and %s", d.Digest, again.Digest)
			}
			if err := Verify(context.Background(), store, d, nil); err != nil {
				t.Error(err)
			}
			s, err := Open(context.Background(), store, d)
			if err != nil {
				t.Fatal(err)
			}
			var device int64
			for _, p := range m.gpu.Processes {
				device += p.Handed()
			}
			if got := s.Config.Memory.Device; got != device {
				t.Errorf("%d bytes of device memory, not %d", got, device)
			}
			files := &fileStore{memoryStore: store, dir: t.TempDir()}
			m.readBack(t, files, d, r)
			out := filepath.Join(t.TempDir(), "images")
			if err := s.Unpack(context.Background(), store, out, UnpackOptions{}); err != nil {
				t.Fatal(err)
			}
			sameDir(t, dir, out)
			if err := s.Unpack(context.Background(), files, filepath.Join(t.TempDir(), "images"), UnpackOptions{Lazy: true}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestDevicesApart: new segments have memory of one kind only, and who unpacks reads none of devices.
func TestDevicesApart(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 3))
	m := randomDevices(r, 64)
	store := newMemoryStore()
	d := mustPack(t, store, m.source(t, SampleImages(t), store, r, PackOptions{SegmentSize: 4 << 20}), PackOptions{SegmentSize: 4 << 20})
	s, err := Open(context.Background(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.ReadIndex(context.Background(), store)
	if err != nil {
		t.Fatal(err)
	}
	kinds := make([]map[bool]bool, len(x.Segments))
	for i := range x.Frames {
		f := &x.Frames[i]
		device := onDevice(*f)
		if kinds[f.Segment] == nil {
			kinds[f.Segment] = map[bool]bool{}
		}
		kinds[f.Segment][device] = true
	}
	for i, kind := range kinds {
		if len(kind) != 1 {
			t.Errorf("segment %d has memory of both kinds", i)
		}
		if kind[true] {
			delete(store.blobs, s.Segments()[i].Digest)
		}
	}
	if err := s.Unpack(context.Background(), store, filepath.Join(t.TempDir(), "images"), UnpackOptions{}); err != nil {
		t.Errorf("without the segments of devices: %v", err)
	}
}

// TestDevicesCodec: bytes whose values have to be decoded one by one are compressed where processes have them, and not on devices.
func TestDevicesCodec(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(6, 6))
	m := deviceMemory{gpu: twoGPUs(), contents: map[int][][]byte{}}
	m.gpu.Engine, m.gpu.Library = KeeperEngine, &GPULibrary{Version: "1.0", Digest: testLibrary}
	p := &m.gpu.Processes[0]
	values, ones := make([]byte, 4<<20), bytes.Repeat([]byte{0x80, 0x3f}, 2<<20)
	for i := 0; i < len(values); i += 8 {
		binary.LittleEndian.PutUint64(values[i:], r.Uint64N(128256))
	}
	host := make(memory)
	for i, content := range [][]byte{values, ones} {
		p.Pieces = append(p.Pieces, GPUPiece{Address: uint64(i+1) << 30, Size: int64(len(content)), Device: m.gpu.Devices[0].UUID})
		m.contents[p.PID] = append(m.contents[p.PID], content)
		for at := 0; at < len(content); at += testPage {
			host[uint64(i+1)<<30+uint64(at)] = content[at : at+testPage]
		}
	}
	store := newMemoryStore()
	dir := fakeImages{maps: map[string]memory{"pagemap-1.img": host}, other: map[string][]byte{"inventory.img": {1}}}.write(t)
	d := mustPack(t, store, m.source(t, dir, store, r, PackOptions{}), PackOptions{})
	s, err := Open(t.Context(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.ReadIndex(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	type kind struct {
		device bool
		addr   uint64 // in GiB
		codec  format.Codec
	}
	got := make(map[kind]int)
	for _, f := range x.Frames {
		got[kind{onDevice(f), f.Runs[0].Addr >> 30, f.Codec}]++
	}
	want := map[kind]int{{false, 1, format.Zstd}: 4, {false, 2, format.Zstd}: 4, {true, 1, format.Raw}: 4, {true, 2, format.Zstd}: 4}
	if !maps.Equal(got, want) {
		t.Errorf("frames are %v, not %v", got, want)
	}
}

// TestDevicesWait: what cannot be encoded at once waits where it is, unless nobody encodes at once.
func TestDevicesWait(t *testing.T) {
	for workers, waits := range map[int]bool{1: false, 2: false, 3: true, 16: true} {
		in, err := NewDeviceIntake(t.Context(), newMemoryStore(), t.TempDir(), nil, testPage, PackOptions{Workers: workers})
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		if in.in.waits != waits {
			t.Errorf("%d workers: %v", workers, in.in.waits)
		}
	}
}

// TestDevicesInLargeSegments: what comes side by side is in segments of its own, however large those of processes may be.
func TestDevicesInLargeSegments(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(4, 4))
	o := PackOptions{SegmentSize: 1 << 30}
	m := deviceMemory{gpu: twoGPUs(), contents: map[int][][]byte{}}
	m.gpu.Engine, m.gpu.Library = KeeperEngine, &GPULibrary{Version: "1.0", Digest: testLibrary}
	p := &m.gpu.Processes[0]
	for _, at := range []uint64{5<<30 - 12<<20, 5<<30 + 12<<20} {
		content := randomContent(r, 24<<20)
		p.Pieces = append(p.Pieces, GPUPiece{Address: at, Size: int64(len(content)), Device: m.gpu.Devices[0].UUID})
		m.contents[p.PID] = append(m.contents[p.PID], content)
	}
	store := newMemoryStore()
	d := mustPack(t, store, m.source(t, SampleImages(t), store, r, o), o)
	if err := Verify(t.Context(), store, d, nil); err != nil {
		t.Error(err)
	}
	m.readBack(t, &fileStore{memoryStore: store, dir: t.TempDir()}, d, r)
	s, err := Open(t.Context(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.ReadIndex(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.Frames {
		f, g := &x.Frames[i], &x.Frames[max(i-1, 0)]
		if onDevice(*f) && f.Segment == g.Segment && f.Runs[0].Addr/deviceSegment != g.Runs[0].Addr/deviceSegment {
			t.Errorf("%#x and %#x are in one segment", f.Runs[0].Addr, g.Runs[0].Addr)
		}
	}
}
