package image

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestUnpackImages has no segments at first, and a damaged layer in the end.
func TestUnpackImages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	dir := fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(r, 1<<32, 3000)}}.write(t)
	s, store := roundTrip(t, dir, PackOptions{SegmentSize: 1 << 20})
	if len(s.Segments()) == 0 {
		t.Fatal("there are no segments that could be missing")
	}
	segments := make(map[digest.Digest][]byte)
	for _, d := range s.Segments() {
		segments[d.Digest] = store.blobs[d.Digest]
		delete(store.blobs, d.Digest)
	}
	out := filepath.Join(t.TempDir(), "images")
	images, err := s.UnpackImages(t.Context(), store, out)
	if err != nil {
		t.Fatal(err)
	}
	want, got := readDir(t, dir), readDir(t, out)
	all := maps.Clone(want)
	for name := range want {
		if strings.HasPrefix(name, "pages-") {
			delete(want, name)
		}
	}
	if len(want) == 0 || len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
	for name, content := range want {
		if string(got[name]) != string(content) {
			t.Errorf("%s differs", name)
		}
	}
	maps.Copy(store.blobs, segments)
	if err := images.Memory(t.Context(), store, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	got = readDir(t, out)
	for name, content := range all {
		if string(got[name]) != string(content) {
			t.Errorf("with memory, %s differs", name)
		}
	}
	layer := store.blobs[s.CRIU().Digest]
	layer[len(layer)/2] ^= 1
	out = filepath.Join(t.TempDir(), "images")
	if _, err := s.UnpackImages(t.Context(), store, out); err == nil {
		t.Error("damage was taken for images")
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("something is left")
	}
}

// TestUnpackMemoryFails has a segment that is damaged: the images that were there are gone too.
func TestUnpackMemoryFails(t *testing.T) {
	s, store := roundTrip(t, fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(rand.New(rand.NewPCG(1, 2)), 1<<32, 300)}}.write(t), PackOptions{})
	out := filepath.Join(t.TempDir(), "images")
	images, err := s.UnpackImages(t.Context(), store, out)
	if err != nil {
		t.Fatal(err)
	}
	segment := store.blobs[s.Segments()[0].Digest]
	segment[len(segment)/2] ^= 1
	if err := images.Memory(t.Context(), store, UnpackOptions{}); !errdefs.IsDataLoss(err) {
		t.Errorf("gives %v", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("something is left")
	}
}
