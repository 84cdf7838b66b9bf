package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// solid makes n MiB of random pages from base on.
func solid(r *rand.Rand, base uint64, n int) memory {
	m := make(memory)
	for page := range uint64(n * 256) {
		m[base+page*testPage] = randomPage(r, 2)
	}
	return m
}

// wants fails the test unless a snapshot verifies and unpacks to the images in dir.
func wants(t testing.TB, store *memoryStore, d ocispec.Descriptor, dir string) *Snapshot {
	t.Helper()
	ctx := context.Background()
	if err := Verify(ctx, store, d, nil); err != nil {
		t.Fatalf("Verify: %v", err)
	}
	s, err := Open(ctx, store, d)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "images")
	if err := s.Unpack(ctx, store, out, UnpackOptions{}); err != nil {
		t.Fatalf("Unpack: %v", err)
	}
	sameDir(t, dir, out)
	return s
}

func openParent(t testing.TB, store *memoryStore, d ocispec.Descriptor) *Parent {
	t.Helper()
	p, err := OpenParent(context.Background(), store, d, testPage)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// increment packs images with a parent, and says what there is new in the store, in bytes of segments.
func increment(t testing.TB, store *memoryStore, f fakeImages, parent ocispec.Descriptor, o PackOptions) (ocispec.Descriptor, *Snapshot, int64) {
	t.Helper()
	before := maps.Clone(store.blobs)
	o.Parent = openParent(t, store, parent)
	dir := f.write(t)
	d := mustPack(t, store, testSource(dir), o)
	s := wants(t, store, d, dir)
	if s.Config.Parent == nil || s.Config.Parent.Digest != parent.Digest {
		t.Fatalf("the parent is %+v instead of %s", s.Config.Parent, parent.Digest)
	}
	var stored int64
	for _, l := range s.Segments() {
		if _, old := before[l.Digest]; !old {
			stored += l.Size
		}
	}
	return d, s, stored
}

// TestIncrementStores says how much of memory that changed is stored: the frames that changed, and nothing else.
func TestIncrementStores(t *testing.T) {
	t.Parallel()
	const size, base = 8, 0x7f0000000000
	o := PackOptions{SegmentSize: 4 << 20}
	r := rand.New(rand.NewPCG(1, 20))
	first := solid(r, base, size)
	store := newMemoryStore()
	parent := mustPack(t, store, testSource(fakeImages{maps: map[string]memory{"pagemap-1.img": first}}.write(t)), o)
	for _, test := range []struct {
		name   string
		pages  []int // that change
		frames int64 // that are new
		shared int   // segments
	}{
		{"nothing", nil, 0, 2},
		{"a page", []int{1000}, 1, 2},
		{"a run inside of a frame", span(256*5+3, 100), 1, 2},
		{"a run across frames", span(256*5+200, 300), 2, 2},
		{"scattered pages", []int{0, 256 * 3, 256 * 5, 256*7 + 255}, 4, 2},
		{"half of a segment", span(256*4, 2*256), 2, 2},
		{"most of a segment", span(256*4, 3*256), 4, 1},
		{"a segment", span(256*4, 4*256), 4, 1},
		{"everything", span(0, 8*256), 8, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := maps.Clone(first)
			for _, page := range test.pages {
				m[base+uint64(page)*testPage] = randomPage(r, 2)
			}
			_, s, stored := increment(t, store, fakeImages{maps: map[string]memory{"pagemap-1.img": m}}, parent, o)
			if stored != test.frames<<20 || s.Config.Parent.Segments != test.shared {
				t.Errorf("%d bytes are new and %d segments shared, want %d and %d", stored, s.Config.Parent.Segments, test.frames<<20, test.shared)
			}
			dead := s.Config.Memory.Stored - size<<20
			if s.Config.Memory.Unused != dead || dead > s.Config.Memory.Stored/2 {
				t.Errorf("%d bytes are unused, not %d, of %d", s.Config.Memory.Unused, dead, s.Config.Memory.Stored)
			}
		})
	}
}

func span(first, n int) []int {
	var out []int
	for i := range n {
		out = append(out, first+i)
	}
	return out
}

// TestIncrementMoved: pages are found wherever they are now, as often as the parent has them.
func TestIncrementMoved(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 20))
	o := PackOptions{SegmentSize: 4 << 20}
	m, shared := solid(r, 1<<40, 4), solid(r, 0, 2)
	store := newMemoryStore()
	parent := mustPack(t, store, testSource(fakeImages{maps: map[string]memory{
		"pagemap-1.img": m, "pagemap-7.img": m, "pagemap-shmem-11.img": shared,
	}}.write(t)), o)
	f := fakeImages{maps: map[string]memory{"pagemap-3.img": m, "pagemap-9.img": m, "pagemap-shmem-5.img": shared}}
	if _, s, stored := increment(t, store, f, parent, o); stored != 0 || s.Config.Parent.Segments != 3 || s.Config.Memory.Unused != 0 {
		t.Errorf("%d bytes are new, the parent is %+v, memory %+v", stored, s.Config.Parent, s.Config.Memory)
	}
	moved := make(memory)
	for addr, page := range m {
		moved[addr+(5<<30)] = page
	}
	f = fakeImages{maps: map[string]memory{"pagemap-1.img": m, "pagemap-2.img": moved, "pagemap-3.img": m}}
	if _, s, _ := increment(t, store, f, parent, o); s.Config.Parent.Segments != 2 || s.Config.Memory.Stored != 12<<20 {
		t.Errorf("the parent is %+v, memory %+v", s.Config.Parent, s.Config.Memory)
	}
}

// TestIncrementChain takes ten snapshots one after the other. What is not in use, and the number of segments, remain bounded, and all
// that was ever stored is no more than twice what has changed.
func TestIncrementChain(t *testing.T) {
	t.Parallel()
	const size, base = 8, 0x10000000
	o := PackOptions{SegmentSize: 4 << 20}
	r := rand.New(rand.NewPCG(3, 20))
	m := solid(r, base, size)
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": m}}
	store := newMemoryStore()
	d := mustPack(t, store, testSource(f.write(t)), o)
	var stored, changed int64
	for n := range 10 {
		frames := map[int]bool{}
		for range 3 {
			page := r.IntN(size * 256)
			frames[page/256] = true
			m[base+uint64(page)*testPage] = randomPage(r, 2)
		}
		var s *Snapshot
		var fresh int64
		d, s, fresh = increment(t, store, f, d, o)
		stored += fresh
		changed += int64(len(frames)) << 20
		t.Logf("%d: %d MiB changed, %d MiB stored, %d of %d MiB unused in %d segments", n, len(frames), fresh>>20, s.Config.Memory.Unused>>20, s.Config.Memory.Stored>>20, len(s.Segments()))
		if s.Config.Memory.Stored > 2*size<<20 || len(s.Segments()) > size/4+2*(n+1) {
			t.Errorf("%d bytes in %d segments for %d MiB", s.Config.Memory.Stored, len(s.Segments()), size)
		}
	}
	if stored > 2*changed {
		t.Errorf("%d bytes were stored, %d changed", stored, changed)
	}
}

// TestIncrementSmall: small segments do not become more and more.
func TestIncrementSmall(t *testing.T) {
	t.Parallel()
	const size = 3
	o := PackOptions{SegmentSize: 64 << 20}
	r := rand.New(rand.NewPCG(4, 20))
	images := t.TempDir()
	store := newMemoryStore()
	d := mustPack(t, store, testSource(fakeImages{maps: map[string]memory{"pagemap-1.img": solid(r, 0, 1)}}.write(t)), o)
	most := 0
	for n := range maxSmall + 6 {
		pagemap, content := encodeMemory(uint32(n+1), memory{0: randomPage(r, 2)}, func(uint64) bool { return true })
		writeFile(t, filepath.Join(images, fmt.Sprintf("pagemap-%d.img", n+1)), pagemap)
		writeFile(t, filepath.Join(images, format.PagesFileName(uint64(n+1))), content)
		o.Parent = openParent(t, store, d)
		d = mustPack(t, store, testSource(images), o)
		s, err := Open(context.Background(), store, d)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, len(s.Segments()))
	}
	s := wants(t, store, d, images)
	if most < maxSmall || most > maxSmall+size || len(s.Segments()) > 8 {
		t.Errorf("there were %d segments, and are %d", most, len(s.Segments()))
	}
}

// TestIncrementRandom packs random changes of random memory, out of files and out of a stream, with any number of workers.
func TestIncrementRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 21))
			f := fakeImages{maps: map[string]memory{}, other: map[string][]byte{"inventory.img": {1}}}
			base := func() uint64 { return 0x400000 + r.Uint64N(1<<40)&^(testPage-1) }
			for i := range 1 + r.IntN(5) {
				f.maps[fmt.Sprintf("pagemap-%d.img", i+1)] = randomMemory(r, base(), r.IntN(700))
			}
			f.maps["pagemap-shmem-48.img"] = randomMemory(r, 0, 1+r.IntN(300))
			o := PackOptions{SegmentSize: 1 << (20 + r.IntN(5)), Workers: 1 + r.IntN(4)}
			store := newMemoryStore()
			d := mustPack(t, store, testSource(f.write(t)), o)
			for range 2 {
				for _, m := range f.maps {
					for _, addr := range slices.Sorted(maps.Keys(m)) {
						switch r.IntN(400) {
						case 0:
							delete(m, addr)
						case 1:
							m[addr] = randomPage(r, r.IntN(3))
						case 2:
							m[addr+uint64(r.IntN(100))*testPage] = randomPage(r, r.IntN(3))
						}
					}
				}
				f.maps[fmt.Sprintf("pagemap-%d.img", 10+r.IntN(5))] = randomMemory(r, base(), r.IntN(300))
				if r.IntN(2) == 0 { // a fork
					f.maps["pagemap-30.img"] = maps.Clone(f.maps["pagemap-1.img"])
				}
				dir := f.write(t)
				o.Workers, o.Parent = 1+r.IntN(4), openParent(t, store, d)
				other := store.clone()
				d = mustPack(t, store, testSource(dir), o)
				wants(t, store, d, dir)

				in := newIntake(t, other, o)
				if err := stream(t, in, dir, r); err != nil {
					t.Fatal(err)
				}
				src := testSource(withoutPages(t, dir))
				src.Memory = in
				if got := mustPack(t, other, src, PackOptions{}); got.Digest != d.Digest {
					t.Errorf("the stream gives %s, the files %s", got.Digest, d.Digest)
				}
				in.Close()
				if store.open+other.open != 0 {
					t.Errorf("%d blobs are open", store.open+other.open)
				}
			}
		})
	}
}

// TestIncrementAlone: nothing of the parent but segments that are listed is needed.
func TestIncrementAlone(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 20))
	o := PackOptions{SegmentSize: 4 << 20}
	m := solid(r, 0, 16)
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": m}}
	store := newMemoryStore()
	parent := mustPack(t, store, testSource(f.write(t)), o)
	for page := range uint64(1024) {
		m[page*testPage] = randomPage(r, 2)
	}
	d, s, _ := increment(t, store, f, parent, o)
	alone := newMemoryStore()
	for _, l := range append([]ocispec.Descriptor{d, s.Manifest.Config}, s.Manifest.Layers...) {
		alone.blobs[l.Digest] = store.blobs[l.Digest]
	}
	wants(t, alone, d, f.write(t))
}

// TestIncrementUnread: what no frame uses is neither read nor of any importance to Unpack; Verify reads it.
func TestIncrementUnread(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(6, 20))
	o := PackOptions{SegmentSize: 4 << 20}
	m := solid(r, 0, 4)
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": m}}
	store := newMemoryStore()
	parent := mustPack(t, store, testSource(f.write(t)), o)
	m[256*testPage] = randomPage(r, 2)
	d, s, _ := increment(t, store, f, parent, o)
	for _, d := range []ocispec.Descriptor{parent, d} {
		if err := VerifyShared(context.Background(), store, d, nil); err != nil {
			t.Errorf("VerifyShared: %v", err)
		}
	}
	for at, sound := range map[int]bool{1<<20 + 5: true, 2<<20 + 5: false} {
		damaged := store.clone()
		b := slices.Clone(damaged.blobs[s.Segments()[0].Digest])
		b[at] ^= 1
		damaged.blobs[s.Segments()[0].Digest] = b
		if err := Verify(context.Background(), damaged, d, nil); !errdefs.IsDataLoss(err) {
			t.Errorf("Verify gives %v", err)
		}
		if err := VerifyShared(context.Background(), damaged, d, nil); !errdefs.IsDataLoss(err) {
			t.Errorf("VerifyShared gives %v", err)
		}
		err := s.Unpack(context.Background(), damaged, filepath.Join(t.TempDir(), "images"), UnpackOptions{})
		if sound && err != nil || !sound && !errdefs.IsDataLoss(err) {
			t.Errorf("with damage at %d Unpack gives %v", at, err)
		}
	}
}

// TestIncrementBadParent: what is missing of the parent is not referred to, what is damaged gives no snapshot.
func TestIncrementBadParent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := rand.New(rand.NewPCG(7, 20))
	o := PackOptions{SegmentSize: 4 << 20}
	m := solid(r, 0, 12)
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": m}}
	whole := newMemoryStore()
	parent := mustPack(t, whole, testSource(f.write(t)), o)
	opened, err := Open(ctx, whole, parent)
	if err != nil {
		t.Fatal(err)
	}
	segment := opened.Segments()[1].Digest

	store := whole.clone()
	delete(store.blobs, segment)
	if _, s, stored := increment(t, store, f, parent, o); stored != 4<<20 || s.Config.Parent.Segments != 2 {
		t.Errorf("without a segment %d bytes are new and %d segments shared", stored, s.Config.Parent.Segments)
	}

	for _, blob := range []digest.Digest{parent.Digest, opened.Manifest.Config.Digest, opened.Index().Digest} {
		store := whole.clone()
		store.blobs[blob] = append(slices.Clone(store.blobs[blob]), '\n')
		if _, err := OpenParent(ctx, store, parent, testPage); !errdefs.IsDataLoss(err) {
			t.Errorf("a damaged parent gives %v", err)
		}
		delete(store.blobs, blob)
		if _, err := OpenParent(ctx, store, parent, testPage); !errdefs.IsNotFound(err) {
			t.Errorf("a parent that lacks something gives %v", err)
		}
	}
	if _, err := OpenParent(ctx, whole, parent, 4*testPage); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("pages of another size give %v", err)
	}

	// Three of the four frames of the segment change: the fourth is copied, and found to be damaged.
	store = whole.clone()
	b := slices.Clone(store.blobs[segment])
	b[len(b)-1] ^= 1
	store.blobs[segment] = b
	for page := range uint64(3 * 256) {
		m[4<<20+page*testPage] = randomPage(r, 2)
	}
	o.Parent = openParent(t, store, parent)
	_, err = Pack(ctx, store, testSource(f.write(t)), o)
	if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), segment.String()) {
		t.Errorf("a damaged segment gives %v", err)
	}
	if store.open != 0 {
		t.Errorf("%d blobs are open", store.open)
	}
}

// TestIncrementLyingParent: a parent's index that gives a frame the digest of other bytes is believed until its segments are verified.
func TestIncrementLyingParent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := rand.New(rand.NewPCG(9, 20))
	o := PackOptions{SegmentSize: 4 << 20}
	m := solid(r, 0, 8)
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": m}}
	store := newMemoryStore()
	parent := mustPack(t, store, testSource(f.write(t)), o)
	o.Parent = openParent(t, store, parent)
	hash := sha256.New()
	for page := range uint64(256) {
		m[page*testPage] = randomPage(r, 2)
		hash.Write(m[page*testPage])
	}
	i := slices.IndexFunc(o.Parent.frames, func(f format.Frame) bool { return f.Segment == 1 })
	o.Parent.frames[i].Digest = [sha256.Size]byte(hash.Sum(nil))
	slices.SortFunc(o.Parent.frames, func(a, b format.Frame) int { return bytes.Compare(a.Digest[:], b.Digest[:]) })
	d := mustPack(t, store, testSource(f.write(t)), o)
	s, err := Open(ctx, store, d)
	if err != nil || s.shared() != 2 {
		t.Fatalf("%d segments are shared: %v", s.shared(), err)
	}
	if err := VerifyShared(ctx, store, d, nil); !errdefs.IsDataLoss(err) {
		t.Errorf("VerifyShared gives %v", err)
	}
}

// TestIncrementForged changes the config of an increment: what it says of the parent's segments must be so.
func TestIncrementForged(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := rand.New(rand.NewPCG(8, 20))
	o := PackOptions{SegmentSize: 4 << 20}
	m := solid(r, 0, 8)
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": m}}
	store := newMemoryStore()
	parent := mustPack(t, store, testSource(f.write(t)), o)
	m[0] = randomPage(r, 2)
	d, s, _ := increment(t, store, f, parent, o)
	for name, change := range map[string]func(c *Config){
		"sound":                     func(*Config) {},
		"a gap in its own segment":  func(c *Config) { c.Parent.Segments = 0 },
		"no parent, but gaps":       func(c *Config) { c.Parent = nil },
		"more segments than it has": func(c *Config) { c.Parent.Segments = 4 },
		"a negative number":         func(c *Config) { c.Parent.Segments = -1 },
		"no digest":                 func(c *Config) { c.Parent.Digest = "sha512:1" },
		"another sum":               func(c *Config) { c.Memory.Unused++ },
		"no sum":                    func(c *Config) { c.Memory.Unused = 0 },
		"too large a sum":           func(c *Config) { c.Memory.Unused = c.Memory.Stored },
		"a negative sum":            func(c *Config) { c.Memory.Unused = -1 },
	} {
		c, manifest := s.Config, s.Manifest
		record := *c.Parent
		c.Parent = &record
		change(&c)
		forged := store.clone()
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		manifest.Config = forged.put(b, manifest.Config)
		if b, err = json.Marshal(manifest); err != nil {
			t.Fatal(err)
		}
		if err := Verify(ctx, forged, forged.put(b, d), nil); name == "sound" && err != nil || name != "sound" && !errdefs.IsDataLoss(err) {
			t.Errorf("%s gives %v", name, err)
		}
	}
}
