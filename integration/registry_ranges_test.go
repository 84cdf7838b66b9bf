package integration

import (
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
)

// TestRegistryRanges reads memory out of a real registry, frame by frame, with nothing here but the index.
func TestRegistryRanges(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count", "--memory", "16"})
	must(t, a.Cryo(t.Context(), "push", f.ref, "--plain-http"))
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, err := registry.NewPuller(t.Context(), s, f.ref, registry.Options{PlainHTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	snapshot, err := image.Open(t.Context(), s, p.Descriptor())
	if err != nil {
		t.Fatal(err)
	}
	x, err := snapshot.ReadIndex(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	ranges := p.Ranges()
	decoder, err := format.NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	var raw int64
	for i := len(x.Frames) - 1; i >= 0; i-- {
		frame := &x.Frames[i]
		stored := make([]byte, frame.Stored)
		err := ranges.Read(t.Context(), snapshot.Segments()[frame.Segment], frame.Offset, stored, false)
		if err == nil {
			_, err = decoder.Decode(frame, stored)
		}
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		raw += frame.Raw
	}
	if raw < 16<<20 {
		t.Errorf("the frames hold %d bytes", raw)
	}
	for _, d := range snapshot.Segments() {
		if there, err := s.Exists(t.Context(), d); there || err != nil {
			t.Errorf("%s is in the store: %v", d.Digest, err)
		}
	}
}
