package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// sample is what packSample returned first, whose blobs no test changes in place.
var sample struct {
	once       sync.Once
	store      *memoryStore
	descriptor ocispec.Descriptor
}

// packedSample returns a snapshot with every kind of layer, raw and compressed frames, in a store of the test's own.
func packedSample(t testing.TB) (*memoryStore, ocispec.Descriptor) {
	t.Helper()
	sample.once.Do(func() { sample.store, sample.descriptor = packSample(t) })
	return sample.store.clone(), sample.descriptor
}

func packSample(t testing.TB) (*memoryStore, ocispec.Descriptor) {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 3))
	f := fakeImages{
		maps:  map[string]memory{"pagemap-1.img": randomMemory(r, 1<<30, 600), "pagemap-2.img": randomMemory(r, 1<<40, 200)},
		other: map[string][]byte{"inventory.img": []byte("inventory"), "files.img": make([]byte, 5000)},
	}
	src := testSource(f.write(t))
	src.RootFS = func(_ context.Context, w io.Writer) error { return sampleTar(w) }
	store := newMemoryStore()
	return store, mustPack(t, store, src, PackOptions{SegmentSize: 1 << 20})
}

// readAll opens, unpacks and reads a snapshot, gives the directory of its images, and says what came first.
func readAll(t testing.TB, store *memoryStore, d ocispec.Descriptor) (string, error) {
	t.Helper()
	ctx := context.Background()
	s, err := Open(ctx, store, d)
	if err != nil {
		return "", err
	}
	parent := t.TempDir()
	dir := filepath.Join(parent, "images")
	if err := s.Unpack(ctx, store, dir, UnpackOptions{}); err != nil {
		if _, statErr := os.Lstat(dir); !errors.Is(statErr, fs.ErrNotExist) {
			t.Errorf("Unpack left its directory after %v", err)
		}
		return "", err
	}
	return dir, s.ReadRootFS(ctx, store, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	})
}

func hinted(err error) bool {
	var h interface{ Hint() string }
	return errors.As(err, &h) && h.Hint() != ""
}

func TestDamage(t *testing.T) {
	t.Parallel()
	store, d := packedSample(t)
	want, err := readAll(t, store, d)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]ocispec.Descriptor{"manifest": d, "config": s.Manifest.Config}
	for _, l := range s.Manifest.Layers {
		parts[l.Annotations[ocispec.AnnotationTitle]] = l
	}
	if len(parts) < 7 {
		t.Fatalf("the sample has only %d parts", len(parts))
	}
	r := rand.New(rand.NewPCG(4, 4))
	for name, part := range parts {
		t.Run(name, func(t *testing.T) {
			check := func(what string, damage func(b []byte) []byte) {
				bad := store.clone()
				bad.blobs[part.Digest] = damage(bytes.Clone(store.blobs[part.Digest]))
				if err := Verify(context.Background(), bad, d, nil); !errdefs.IsDataLoss(err) || !hinted(err) {
					t.Errorf("%s: Verify gives %v", what, err)
				}
				got, err := readAll(t, bad, d)
				if err == nil && strings.HasPrefix(name, "segment-") {
					// Bytes that no frame has, or a bit that zstd does not need: the memory must be what it was.
					sameDir(t, want, got)
				} else if !errdefs.IsDataLoss(err) || !hinted(err) {
					t.Errorf("%s: reading gives %v", what, err)
				}
			}
			positions := []int{0, 1, 3, 4, 7, 8, int(part.Size) / 2, int(part.Size) - 1}
			for range 3 {
				positions = append(positions, r.IntN(int(part.Size)))
			}
			for _, at := range positions {
				check(fmt.Sprintf("bit flipped at %d of %d", at, part.Size), func(b []byte) []byte { b[at%len(b)] ^= 1 << r.IntN(8); return b })
			}
			for _, n := range []int{0, 1, int(part.Size) / 2, int(part.Size) - 1} {
				check(fmt.Sprintf("cut to %d of %d", n, part.Size), func(b []byte) []byte { return b[:n] })
			}
			check("longer", func(b []byte) []byte { return append(b, 0) })
			check("other", func(b []byte) []byte { return bytes.Repeat([]byte{'x'}, len(b)) })
		})
	}
}

func TestMissingBlob(t *testing.T) {
	t.Parallel()
	store, d := packedSample(t)
	for missing := range store.blobs {
		bad := store.clone()
		delete(bad.blobs, missing)
		if err := Verify(context.Background(), bad, d, nil); !errdefs.IsNotFound(err) {
			t.Errorf("Verify without %s gives %v", missing, err)
		}
	}
}

// put stores a blob and gives its descriptor the rest of like.
func (m *memoryStore) put(b []byte, like ocispec.Descriptor) ocispec.Descriptor {
	m.mu.Lock()
	defer m.mu.Unlock()
	like.Digest, like.Size = digest.FromBytes(b), int64(len(b))
	m.blobs[like.Digest] = b
	return like
}

func TestOpenRefuses(t *testing.T) {
	store := newMemoryStore()
	image := store.put([]byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[]}`), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest})
	text := store.put([]byte("hello"), ocispec.Descriptor{})
	newer := store.put([]byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.cryo.snapshot.v9"}`), ocispec.Descriptor{})
	tests := []struct {
		name string
		d    ocispec.Descriptor
		kind func(error) bool
	}{
		{"image", image, errdefs.IsDataLoss},
		{"no JSON", text, errdefs.IsDataLoss},
		{"image index", ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: image.Digest, Size: image.Size}, errdefs.IsDataLoss},
		{"newer version", newer, errdefs.IsNotImplemented},
		{"other algorithm", ocispec.Descriptor{Digest: digest.Digest("sha512:" + strings.Repeat("0", 128)), Size: 1}, errdefs.IsDataLoss},
		{"no digest", ocispec.Descriptor{Size: 1}, errdefs.IsDataLoss},
		{"too large", ocispec.Descriptor{Digest: image.Digest, Size: 1 << 40}, errdefs.IsDataLoss},
		{"missing", ocispec.Descriptor{Digest: digest.FromString("none"), Size: 4}, errdefs.IsNotFound},
	}
	for _, test := range tests {
		if _, err := Open(context.Background(), store, test.d); !test.kind(err) {
			t.Errorf("Open of %s gives %v", test.name, err)
		}
	}
}
