package registry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// wantThere wants blobs to be in a store, or not to be.
func wantThere(t *testing.T, s *store.Store, want bool, blobs ...ocispec.Descriptor) {
	t.Helper()
	for _, d := range blobs {
		if ok, err := s.Exists(t.Context(), d); err != nil || ok != want {
			t.Errorf("%s %s is there: %v, %v; want %v", d.MediaType, d.Digest, ok, err, want)
		}
	}
}

// puller begins a pull, and closes it when the test ends.
func puller(t *testing.T, s *store.Store, ref string, o Options) *Puller {
	t.Helper()
	p, err := NewPuller(t.Context(), s, ref, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// A snapshot can be looked at before its segments are fetched, and has no name until all of it is there.
func TestPuller(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	src, d := pushed(t, f, "p:1", withSegments(1, 1, 2, 3))
	m := manifestOf(t, src, d)
	small, segments := append([]ocispec.Descriptor{d, m.Config}, m.Layers[:2]...), m.Layers[2:]
	for _, wanted := range []bool{false, true} {
		s := storetest.Open(t)
		f.forget()
		p := puller(t, s, f.ref("p:1"), fast())
		for _, l := range f.log {
			for _, d := range segments {
				if strings.Contains(l, d.Digest.String()) {
					t.Errorf("too early: %s", l)
				}
			}
		}
		for _, d := range small {
			if data, err := store.ReadAll(t.Context(), p, d, 1<<20); err != nil || int64(len(data)) != d.Size {
				t.Errorf("%s: %d bytes, %v", d.MediaType, len(data), err)
			}
		}
		if err := p.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantThere(t, s, true, small...)
		wantThere(t, s, false, segments...)
		if snapshot, err := image.Open(t.Context(), s, p.Descriptor()); err != nil || len(snapshot.Segments()) != 3 {
			t.Errorf("open: %v", err)
		}
		if tags, _ := s.Tags(t.Context()); len(tags) != 0 {
			t.Errorf("tagged: %v", tags)
		}
		if !wanted {
			if err := p.Abandon(); err != nil {
				t.Error(err)
			}
			if n := storetest.Count(t, s); n != 0 {
				t.Errorf("%d blobs are left", n)
			}
			continue
		}
		p.ThroughCache()
		if err := p.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.Close()
		wantThere(t, s, true, segments...)
		if got, err := s.Resolve(t.Context(), f.ref("p:1")); err != nil || got.Digest != d.Digest {
			t.Errorf("Resolve: %v, %v", got, err)
		}
		if err := storetest.Check(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
}

// TestPullerWhole: segments of a source that has them as wholes are there when they have their digest, before the snapshot has its name, and can be read when the store is gone.
func TestPullerWhole(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	pushed(t, f, "p:1", withSegments(1, 1, 2, 3))
	s := storetest.Open(t)
	p := puller(t, s, f.ref("p:1"), fast())
	running := make(chan struct{})
	p.Lazily(Lazy{Source: sourceOf(t, s, p), Head: -1, Running: running})
	p.lazy.Source.Whole = true
	done := finish(t.Context(), p)
	arrived(t, p)
	select {
	case err := <-done:
		t.Fatalf("it has ended: %v", err)
	default:
	}
	close(running)
	if err := errors.Join(<-done, os.RemoveAll(s.Layout())); err != nil {
		t.Fatal(err)
	}
	for _, d := range p.segments {
		data := make([]byte, d.Size)
		if n, err := opened(t, p, d).ReadAt(data, 0); n != len(data) || err != nil || digest.FromBytes(data) != d.Digest {
			t.Errorf("%s is %d bytes of another, %v", d.Digest, n, err)
		}
	}
}

// Abandoning a snapshot whose small parts are on their way into the store leaves nothing of them there, nor beside it.
func TestPullerAbandonsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	pushed(t, f, "p:1", withSegments(1, 1, 2, 3))
	for range 20 {
		s := storetest.Open(t)
		p, err := NewPuller(t.Context(), s, f.ref("p:1"), fast())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Abandon(); err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(filepath.Join(s.Root(), "partial", "*"))
		if n := storetest.Count(t, s); n != 0 || len(left) != 0 || err != nil {
			t.Fatalf("%d blobs and %v are left, %v", n, left, err)
		}
	}
}

// Two may fetch a snapshot at once: who comes later waits for the small parts only.
func TestPullerTwice(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	pushed(t, f, "p:1", withSegments(1, 1, 2, 3))
	s := storetest.Open(t)
	for range 2 {
		puller(t, s, f.ref("p:1"), fast())
	}
	pullers := make(chan error, 8)
	other := storetest.Open(t)
	for range cap(pullers) {
		go func() {
			p, err := NewPuller(t.Context(), other, f.ref("p:1"), fast())
			if err == nil {
				t.Cleanup(p.Close) // all of them have what they want while the others have it still
			}
			pullers <- err
		}()
	}
	for range cap(pullers) {
		if err := <-pullers; err != nil {
			t.Error(err)
		}
	}
}

// Abandoning a snapshot of which another name is in the store takes nothing from that.
func TestPullerAbandonsWhatIsNew(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "p:1", withSegments(1, 1, 2, 3))
	s := pulled(t, f, "p:1", d)
	p, err := NewPuller(t.Context(), s, f.ref("p:1"), fast())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Abandon(); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestLook fetches the small parts of a snapshot, asks the registry whether it has the others, and leaves nothing in the store.
func TestLook(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	src, d := pushed(t, f, "p:1", withSegments(1, 2, 3))
	m := manifestOf(t, src, d)
	left := m.Layers[2:]
	s := storetest.Open(t)
	f.forget()
	p, err := Look(t.Context(), s, f.ref("p:1"), fast())
	if err != nil {
		t.Fatal(err)
	}
	if size, err := p.CheckRest(t.Context()); err != nil || size != total(left) {
		t.Errorf("the rest is of %d bytes, want %d: %v", size, total(left), err)
	}
	for _, l := range left {
		if n := f.count("GET /v2/p/blobs/" + l.Digest.String()); n != 0 {
			t.Errorf("%s was read", l.MediaType)
		}
	}
	f.mu.Lock()
	delete(f.blobs["p"], left[0].Digest)
	f.mu.Unlock()
	if _, err := p.CheckRest(t.Context()); !errdefs.IsDataLoss(err) {
		t.Errorf("without a blob: %v", err)
	}
	if err := p.Abandon(); err != nil {
		t.Error(err)
	}
	wantThere(t, s, false, append([]ocispec.Descriptor{d, m.Config}, m.Layers...)...)
}
