package image

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/pages"
)

// decodedStore has no segments, but memory as Decode writes it.
type decodedStore struct {
	*memoryStore
	path string
}

func (s decodedStore) Memory(context.Context) (*os.File, error) { return os.Open(s.path) }

// decode decodes a snapshot, and forgets its segments.
func decode(t *testing.T, r *rand.Rand) (s *Snapshot, decoded decodedStore, want string) {
	t.Helper()
	store, d, want, _ := unpackLazily(t, r)
	decoded = decodedStore{store.clone(), filepath.Join(t.TempDir(), "memory")}
	f, err := os.Create(decoded.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Decode(t.Context(), store, d, f, nil); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), store, d); err != nil {
		t.Fatal(err)
	}
	for _, d := range s.Segments() {
		delete(decoded.blobs, d.Digest)
	}
	return s, decoded, want
}

// TestDecoded unpacks without segments, all at once and lazily.
func TestDecoded(t *testing.T) {
	for seed := range uint64(3) {
		s, decoded, want := decode(t, rand.New(rand.NewPCG(seed, 8)))
		all := filepath.Join(t.TempDir(), "images")
		if err := s.Unpack(t.Context(), decoded, all, UnpackOptions{}); err != nil {
			t.Fatal(err)
		}
		sameDir(t, want, all)
		lazy := filepath.Join(t.TempDir(), "images")
		if err := s.Unpack(t.Context(), decoded, lazy, UnpackOptions{Lazy: true}); err != nil {
			t.Fatal(err)
		}
		live, reader := openReader(t, decoded, s.Descriptor, lazy)
		for _, pid := range []int{1, 2} {
			for _, part := range live.Lazy(pid) {
				raw, err := reader.Read(part)
				if err != nil {
					t.Fatal(err)
				}
				for _, run := range part.Runs {
					merge(t, filepath.Join(lazy, pages.FileName(run.File)), run.First, raw[:run.Count*testPage])
					raw = raw[run.Count*testPage:]
				}
			}
		}
		sameDir(t, want, lazy)
	}
}

// TestDecodedCut has memory that is too short.
func TestDecodedCut(t *testing.T) {
	s, decoded, _ := decode(t, rand.New(rand.NewPCG(1, 9)))
	if err := os.Truncate(decoded.path, testPage); err != nil {
		t.Fatal(err)
	}
	if err := s.Unpack(t.Context(), decoded, filepath.Join(t.TempDir(), "images"), UnpackOptions{}); !errdefs.IsDataLoss(err) {
		t.Errorf("gives %v", err)
	}
}

// TestDecodeDamage decodes what does not verify.
func TestDecodeDamage(t *testing.T) {
	store, d, _, _ := unpackLazily(t, rand.New(rand.NewPCG(2, 9)))
	s, err := Open(t.Context(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, part := range s.Manifest.Layers {
		whole := store.blobs[part.Digest]
		damaged := store.clone()
		damaged.blobs[part.Digest] = append([]byte{whole[0] ^ 1}, whole[1:]...)
		if err := Decode(t.Context(), damaged, d, f, nil); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: gives %v", part.MediaType, err)
		}
	}
}
