package image

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// benchImages makes n MiB of one kind of memory: 0 zeros, 1 text, 2 random.
func benchImages(b *testing.B, mib, kind int) string {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	m := make(memory, mib*256)
	for i := range mib * 256 {
		m[1<<32+uint64(i)*testPage] = randomPage(r, kind)
	}
	return fakeImages{maps: map[string]memory{"pagemap-1.img": m}}.write(b)
}

// nullStore forgets what it is given, but for its length.
type nullStore struct{ BlobStore }

type nullBlob struct{ n int64 }

func (nullStore) Create(context.Context) (BlobWriter, error) { return new(nullBlob), nil }
func (b *nullBlob) Write(p []byte) (int, error)              { b.n += int64(len(p)); return len(p), nil }
func (b *nullBlob) Close() error                             { return nil }
func (b *nullBlob) Commit(_ context.Context, mediaType string) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromString(fmt.Sprint(b.n)), Size: b.n}, nil
}

// BenchmarkPack leaves out what the store costs: hashing and writing blobs.
func BenchmarkPack(b *testing.B) {
	for kind, name := range []string{"zero", "text", "random"} {
		b.Run(name, func(b *testing.B) {
			const mib = 256
			src := testSource(benchImages(b, mib, kind))
			b.SetBytes(mib << 20)
			for b.Loop() {
				mustPack(b, nullStore{}, src, PackOptions{})
			}
		})
	}
}

func BenchmarkUnpack(b *testing.B) {
	for kind, name := range []string{"zero", "text", "random"} {
		b.Run(name, func(b *testing.B) {
			const mib = 256
			store := newMemoryStore()
			d := mustPack(b, store, testSource(benchImages(b, mib, kind)), PackOptions{})
			s, err := Open(context.Background(), store, d)
			if err != nil {
				b.Fatal(err)
			}
			dir := filepath.Join(b.TempDir(), "images")
			b.SetBytes(mib << 20)
			for b.Loop() {
				if err := s.Unpack(context.Background(), store, dir, UnpackOptions{}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				os.RemoveAll(dir)
				b.StartTimer()
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	const mib = 256
	store := newMemoryStore()
	d := mustPack(b, store, testSource(benchImages(b, mib, 2)), PackOptions{})
	b.SetBytes(mib << 20)
	for b.Loop() {
		if err := Verify(context.Background(), store, d, nil); err != nil {
			b.Fatal(err)
		}
	}
}
