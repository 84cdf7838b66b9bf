package image

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnpackImages has no segments, and a damaged layer.
func TestUnpackImages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	dir := fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(r, 1<<32, 3000)}}.write(t)
	s, store := roundTrip(t, dir, PackOptions{SegmentSize: 1 << 20})
	if len(s.Segments()) == 0 {
		t.Fatal("there are no segments that could be missing")
	}
	for _, d := range s.Segments() {
		delete(store.blobs, d.Digest)
	}
	out := filepath.Join(t.TempDir(), "images")
	if err := s.UnpackImages(t.Context(), store, out); err != nil {
		t.Fatal(err)
	}
	want, got := readDir(t, dir), readDir(t, out)
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
	layer := store.blobs[s.CRIU().Digest]
	layer[len(layer)/2] ^= 1
	out = filepath.Join(t.TempDir(), "images")
	if err := s.UnpackImages(t.Context(), store, out); err == nil {
		t.Error("damage was taken for images")
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("something is left")
	}
}
