package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var testConfig = Config{
	Created:   time.Date(2025, 11, 21, 3, 4, 5, 0, time.UTC),
	Container: Container{ID: "web", Runtime: "io.containerd.cryo.v1", Image: "docker.io/library/busybox:1.36", ImageDigest: digest.FromString("base")},
	Spec:      []byte(`{"ociVersion":"1.2.0"}`),
	Host:      Host{OS: "linux", Architecture: "amd64", Kernel: "6.12", PageSize: testPage, CgroupVersion: 2, CRIU: "4.1.1"},
}

func testSource(dir string) PackSource {
	return PackSource{Images: dir, Config: testConfig}
}

func mustPack(t testing.TB, dst BlobStore, src PackSource, o PackOptions) ocispec.Descriptor {
	t.Helper()
	d, err := Pack(context.Background(), dst, src, o)
	if err != nil {
		t.Fatalf("Pack: %v", err)
	}
	return d
}

// roundTrip packs, verifies and unpacks a directory and compares.
func roundTrip(t testing.TB, dir string, o PackOptions) (*Snapshot, *memoryStore) {
	t.Helper()
	ctx, store := context.Background(), newMemoryStore()
	d := mustPack(t, store, testSource(dir), o)
	if store.open != 0 {
		t.Errorf("Pack left %d blobs open", store.open)
	}
	if err := Verify(ctx, store, d, nil); err != nil {
		t.Fatalf("Verify: %v", err)
	}
	s, err := Open(ctx, store, d)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	out := filepath.Join(t.TempDir(), "images")
	if err := s.Unpack(ctx, store, out, UnpackOptions{}); err != nil {
		t.Fatalf("Unpack: %v", err)
	}
	sameDir(t, dir, out)
	return s, store
}

func TestRoundTripRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			f := fakeImages{maps: map[string]memory{}, other: map[string][]byte{"inventory.img": {1, 2}, "dump.log": {3}, "tmpfs-dev-7.tar.gz.img": make([]byte, 70000)}}
			for i := range 1 + r.IntN(6) {
				f.maps[fmt.Sprintf("pagemap-%d.img", i+1)] = randomMemory(r, 0x400000+r.Uint64N(1<<40)&^(testPage-1), r.IntN(700))
			}
			f.maps["pagemap-shmem-1048.img"] = randomMemory(r, 0, r.IntN(300))
			o := PackOptions{SegmentSize: 1 << (20 + r.IntN(6)), Workers: 1 + r.IntN(5)}
			if r.IntN(3) == 0 {
				o.Compression = "none"
			}
			s, _ := roundTrip(t, f.write(t), o)
			if got := s.Config.Memory; got.Total < got.Zero || got.Stored == 0 && got.Total > got.Zero {
				t.Errorf("memory totals are %+v", got)
			}
		})
	}
}

// TestRoundTripDump packs a real dump, where there is one.
func TestRoundTripDump(t *testing.T) {
	dir := os.Getenv("CRYO_TEST_IMAGES")
	if dir == "" {
		t.Skip("CRYO_TEST_IMAGES names no directory of CRIU images")
	}
	s, _ := roundTrip(t, dir, PackOptions{})
	t.Logf("%+v %+v", s.Config.Memory, s.Config.Processes)
}

func TestPackIsDeterministic(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 5))
	f := fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(r, 1<<30, 1500), "pagemap-2.img": randomMemory(r, 1<<31, 500)}, other: map[string][]byte{"core-1.img": imageHeader(1)}}
	src := testSource(f.write(t))
	delete(f.other, "core-1.img")
	src.Images = f.write(t)
	src.RootFS = func(_ context.Context, w io.Writer) error {
		_, err := w.Write(bytes.Repeat([]byte("0123456789abcdef"), 1<<18))
		return err
	}
	var first ocispec.Descriptor
	for _, workers := range []int{1, 2, 7, 32} {
		d := mustPack(t, newMemoryStore(), src, PackOptions{SegmentSize: 2 << 20, Workers: workers})
		if first.Digest == "" {
			first = d
		}
		if d.Digest != first.Digest {
			t.Errorf("%d workers give %s instead of %s", workers, d.Digest, first.Digest)
		}
	}
}

// TestConfigDescribesItself: the config's first members are its type, for programs that have no manifest.
func TestConfigDescribesItself(t *testing.T) {
	t.Parallel()
	store, d := packedSample(t)
	s, err := Open(t.Context(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"schemaVersion":2,"mediaType":"application/vnd.cryo.snapshot.config.v1+json","version":1,`
	if config := store.blobs[s.Manifest.Config.Digest]; !bytes.HasPrefix(config, []byte(want)) {
		t.Errorf("the config begins as %.100s", config)
	}
}
