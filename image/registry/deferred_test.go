package registry

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// deferring gives a puller of d:1 of the fake that hashes segments when filled is closed, and has settled.
func deferring(t *testing.T, f *fake, s *store.Store, filled <-chan struct{}) *Puller {
	t.Helper()
	p := puller(t, s, f.ref("d:1"), fast())
	if err := p.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.forget()
	p.ThroughCache()
	running := make(chan struct{})
	close(running)
	p.Lazily(Lazy{Source: sourceOf(t, s, p), Head: -1, Running: running, Filled: filled, rest: time.Hour})
	return p
}

func finish(ctx context.Context, p *Puller) <-chan error {
	done := make(chan error, 1)
	go func() { done <- p.Finish(ctx) }()
	return done
}

// sourceOf gives a source that reads by a puller.
func sourceOf(t *testing.T, s *store.Store, p *Puller) *store.PullSource {
	t.Helper()
	ranges := p.Ranges()
	source, err := store.NewPullSource(t.Context(), s, ranges.Read)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.Close)
	source.Turn = ranges.Turn
	return source
}

// opened opens a segment of the puller's source.
func opened(t *testing.T, p *Puller, d ocispec.Descriptor) image.Arriving {
	t.Helper()
	rc, err := p.lazy.Source.Fetch(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return rc.(image.Arriving)
}

// arrived waits until all bytes of segments can be read.
func arrived(t *testing.T, p *Puller) {
	t.Helper()
	for _, d := range p.segments {
		a := opened(t, p, d)
		for deadline := time.Now().Add(10 * time.Second); !a.There(d.Size); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it does not come")
			}
		}
	}
}

// damaging has the fake send a segment damaged in its last byte, so many times.
func damaging(f *fake, d ocispec.Descriptor, times int64) {
	var n atomic.Int64
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != "GET" || !strings.HasSuffix(r.URL.Path, d.Digest.String()) || n.Add(1) > times {
			return false
		}
		f.mu.Lock()
		data := bytes.Clone(f.blobs["d"][d.Digest])
		f.mu.Unlock()
		data[len(data)-1] ^= 1
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		return true
	}
}

// Segments can be read when they have come, and are hashed, and become blobs of the store, when all are here and who reads them has what it needs.
func TestDeferred(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "d:1", withSegments(1, 1, 2, 3))
	s, filled := storetest.Open(t), make(chan struct{})
	p := deferring(t, f, s, filled)
	done := finish(t.Context(), p)
	arrived(t, p)
	time.Sleep(50 * time.Millisecond)
	wantThere(t, s, false, p.segments...)
	close(filled)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantThere(t, s, true, p.segments...)
	if got, err := s.Resolve(t.Context(), f.ref("d:1")); err != nil || got.Digest != d.Digest {
		t.Errorf("Resolve: %v, %v", got, err)
	}
	p.Close()
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// What is damaged is found before it has its name, and fetched once more; twice is an error.
func TestDeferredDamage(t *testing.T) {
	t.Parallel()
	for _, times := range []int64{1, damageAttempts} {
		f := newFake(t)
		pushed(t, f, "d:1", withSegments(1, 1, 2, 3))
		s, filled := storetest.Open(t), make(chan struct{})
		p := deferring(t, f, s, filled)
		bad := p.segments[1]
		damaging(f, bad, times)
		done := finish(t.Context(), p)
		arrived(t, p)
		close(filled)
		err := <-done
		if n := f.count("GET /v2/d/blobs/" + bad.Digest.String()); n != 2 {
			t.Errorf("damaged %d times: fetched %d times", times, n)
		}
		tags, tagged := s.Tags(t.Context())
		if times == 1 && (err != nil || len(tags) != 1) || times > 1 && (!errdefs.IsDataLoss(err) || len(tags) != 0) || tagged != nil {
			t.Errorf("damaged %d times: %v, tags %v, %v", times, err, tags, tagged)
		}
		wantThere(t, s, times == 1, bad)
		if err := storetest.CheckBlobs(s); err != nil {
			t.Error(err)
		}
	}
}

// Who ends while segments wait to be hashed leaves them for the next, which takes nothing for granted.
func TestDeferredInterrupted(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "d:1", withSegments(1, 1, 2, 3))
	s := storetest.Open(t)
	p := deferring(t, f, s, nil)
	bad := p.segments[1]
	damaging(f, bad, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := finish(ctx, p)
	arrived(t, p)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	wantThere(t, s, false, p.segments...)
	p.Close()
	f.forget()
	if got, err := Pull(t.Context(), s, f.ref("d:1"), fast()); err != nil || got.Digest != d.Digest {
		t.Errorf("next: %v, %v", got, err)
	}
	if all, again := f.count("GET /v2/d/blobs/"), f.count("GET /v2/d/blobs/"+bad.Digest.String()); all != 1 || again != 1 {
		t.Errorf("%d blobs were fetched again, and the damaged one %d times", all, again)
	}
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// No segment waits for long, also where others do not come: another process may want it, and have those.
func TestDeferredForALittle(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	pushed(t, f, "d:1", withSegments(1, 1, 2, 3))
	s := storetest.Open(t)
	p := deferring(t, f, s, nil)
	p.lazy.rest = 10 * time.Millisecond
	let := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(let) })
	t.Cleanup(goOn) // the registry does not end before its answers
	late := p.segments[2]
	f.fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == "GET" && strings.HasSuffix(r.URL.Path, late.Digest.String()) {
			<-let
		}
		return false
	}
	done := finish(t.Context(), p)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if missing, err := p.Missing(t.Context()); err != nil || time.Now().After(deadline) {
			t.Fatalf("%d are missing, %v", len(missing), err)
		} else if len(missing) == 1 && missing[0].Digest == late.Digest {
			break
		}
	}
	goOn()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What goes past the page cache is hashed as it comes.
func TestDeferredPastCache(t *testing.T) {
	f := newFake(t)
	pushed(t, f, "d:1", withSegments(1, 1, 2, 3, 4))
	s, filled := storetest.Open(t), make(chan struct{})
	p := deferring(t, f, s, filled)
	p.cached = false
	if err := p.Finish(t.Context()); err != nil {
		t.Error(err)
	}
	wantThere(t, s, true, p.segments...)
}
