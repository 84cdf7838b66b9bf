package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/storetest"
)

// A puller that is held back fetches few segments at once, and names the snapshot when it is not held back any more.
func TestPace(t *testing.T) {
	for _, few := range []int{0, 1} {
		t.Run(fmt.Sprint(few), func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			pushed(t, f, "p:1", withSegments(1, 1, 2, 3))
			s := storetest.Open(t)
			p := puller(t, s, f.ref("p:1"), fast())
			if err := p.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.forget()
			all, let := make(chan struct{}), make(chan struct{})
			var reading atomic.Int64
			p.ThroughCache()
			f.fault = func(http.ResponseWriter, *http.Request) bool {
				reading.Add(1)
				<-let
				return false
			}
			p.Lazily(Lazy{Source: sourceOf(t, s, p), Head: few, Running: all, rest: 700 * time.Millisecond})
			done := make(chan error, 1)
			go func() { done <- p.Finish(t.Context()) }()
			time.Sleep(100 * time.Millisecond)
			if n := f.count("GET /v2/p/blobs/"); n != few || reading.Load() != int64(few) {
				t.Errorf("%d segments are begun, and %d read, want %d", n, reading.Load(), few)
			}
			close(let)
			time.Sleep(100 * time.Millisecond)
			if n := f.count("GET /v2/p/blobs/"); n != 3*few {
				t.Errorf("%d segments are fetched, one after the other, want %d", n, 3*few)
			}
			select {
			case err := <-done:
				t.Fatalf("it has ended: %v", err)
			default:
			}
			if tags, err := s.Tags(t.Context()); len(tags) != 0 || err != nil {
				t.Errorf("it has a name: %v, %v", tags, err)
			}
			wantThere(t, s, false, p.segments...) // the disk is left alone
			close(all)
			if err := <-done; err != nil || f.count("GET /v2/p/blobs/") != 3 {
				t.Errorf("%v, and %d segments were fetched", err, f.count("GET /v2/p/blobs/"))
			}
			if _, err := s.Resolve(t.Context(), f.ref("p:1")); err != nil {
				t.Error(err)
			}
		})
	}
}

// What is wanted first is fetched first, though all are fetched at once: no more than the name is held back.
func TestPaceFirst(t *testing.T) {
	f := newFake(t)
	_, d := pushed(t, f, "p:1", withSegments(1, 1, 2, 3))
	s := storetest.Open(t)
	o := fast()
	o.Concurrency = 1
	p := puller(t, s, f.ref("p:1"), o)
	segments := slices.Clone(p.segments)
	p.First([]ocispec.Descriptor{segments[2]})
	if want := []ocispec.Descriptor{segments[2], segments[0], segments[1]}; !reflect.DeepEqual(p.segments, want) {
		t.Errorf("they come as %v", p.segments)
	}
	all := make(chan struct{})
	p.Lazily(Lazy{Source: sourceOf(t, s, p), Head: -1, Running: all})
	done := make(chan error, 1)
	go func() { done <- p.Finish(t.Context()) }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if missing, err := p.Missing(t.Context()); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v is missing, %v", missing, err)
		} else if len(missing) == 0 {
			break
		}
	}
	if tags, err := s.Tags(t.Context()); len(tags) != 0 || err != nil {
		t.Errorf("it has a name: %v, %v", tags, err)
	}
	close(all)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got, err := s.Resolve(t.Context(), f.ref("p:1")); err != nil || got.Digest != d.Digest {
		t.Error(got, err)
	}
}

// A puller that is held back can be ended, whatever it waits for.
func TestPaceEnds(t *testing.T) {
	for _, few := range []int{0, 1} {
		f := newFake(t)
		pushed(t, f, "p:1", withSegments(1, 1, 2, 3))
		s := storetest.Open(t)
		p := puller(t, s, f.ref("p:1"), fast())
		ctx, cancel := context.WithCancel(t.Context())
		f.fault = func(_ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			return true
		}
		p.Lazily(Lazy{Source: sourceOf(t, s, p), Head: few, Running: make(chan struct{})})
		done := make(chan error, 1)
		go func() { done <- p.Finish(ctx) }()
		time.Sleep(20 * time.Millisecond)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%d at once: %v", few, err)
		}
	}
}
