package registry

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// quick is for registries that answer at once.
var quick = timing{wait: time.Millisecond, maxWait: 5 * time.Millisecond, attempts: 4, idle: time.Second}

func fast() Options { return Options{timing: quick, certs: "/nonexistent"} }

func withSegments(seed uint64, segments ...uint64) storetest.Spec {
	return storetest.Spec{Seed: seed, Segments: segments}
}

// pushed puts a snapshot into a store and a registry.
func pushed(t *testing.T, f *fake, name string, sp storetest.Spec) (*store.Store, ocispec.Descriptor) {
	t.Helper()
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, f.ref(name), sp)
	if err := Push(t.Context(), s, f.ref(name), d, fast()); err != nil {
		t.Fatal(err)
	}
	f.forget()
	return s, d
}

func pulled(t *testing.T, f *fake, name string, want ocispec.Descriptor) *store.Store {
	t.Helper()
	s := storetest.Open(t)
	d, err := Pull(t.Context(), s, f.ref(name), fast())
	if err != nil {
		t.Fatal(err)
	}
	if d.Digest != want.Digest || d.Size != want.Size || d.MediaType != want.MediaType {
		t.Errorf("pulled %v, want %v", d, want)
	}
	if got, err := s.Resolve(t.Context(), f.ref(name)); err != nil || got.Digest != want.Digest {
		t.Errorf("Resolve: %v, %v", got, err)
	}
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	return s
}

func TestPushPull(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	src, d := pushed(t, f, "a/b:1", withSegments(1, 1, 2, 2, 3)) // segment 2 twice: one blob
	got, err := Resolve(t.Context(), f.ref("a/b:1"), fast())
	if err != nil || got.Digest != d.Digest {
		t.Errorf("Resolve: %v, %v", got, err)
	}
	pulled(t, f, "a/b:1", d)
	pulled(t, f, "a/b@"+d.Digest.String(), d)

	t.Run("again sends nothing", func(t *testing.T) {
		f.forget()
		if err := Push(t.Context(), src, f.ref("a/b:1"), d, fast()); err != nil {
			t.Fatal(err)
		}
		if n := f.count("POST"); n != 0 {
			t.Errorf("%d uploads", n)
		}
	})
	t.Run("what did not change is not sent", func(t *testing.T) {
		d2 := storetest.MustPut(t, src, f.ref("a/b:2"), withSegments(2, 1, 2, 3, 4))
		f.forget()
		if err := Push(t.Context(), src, f.ref("a/b:2"), d2, fast()); err != nil {
			t.Fatal(err)
		}
		if n := f.count("PUT /v2/a/b/blobs/"); n != 4 { // config, index, criu, segment 4
			t.Errorf("%d blobs sent, want 4", n)
		}
		s := pulled(t, f, "a/b:1", d)
		f.forget()
		if _, err := Pull(t.Context(), s, f.ref("a/b:2"), fast()); err != nil {
			t.Fatal(err)
		}
		if n := f.count("GET /v2/a/b/blobs/"); n != 4 {
			t.Errorf("%d blobs fetched, want 4", n)
		}
	})
	t.Run("another repository mounts", func(t *testing.T) {
		f.forget()
		if err := Push(t.Context(), src, f.ref("c:1"), d, fast()); err != nil {
			t.Fatal(err)
		}
		if n := f.count("PUT /v2/c/blobs/"); n != 1 { // configs are not worth a guess
			t.Errorf("%d blobs sent", n)
		}
		pulled(t, f, "c:1", d)
	})
	t.Run("digest of another", func(t *testing.T) {
		if err := Push(t.Context(), src, f.ref("c@"+digest.FromString("x").String()), d, fast()); !errdefs.IsInvalidArgument(err) {
			t.Error(err)
		}
	})
}

func TestProgress(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, f.ref("p:1"), withSegments(1, 1, 2, 3))
	var fails atomic.Int32
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/") && fails.Add(1) <= 3 {
			r.Body.Read(make([]byte, 20000))
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	check := func(what string) (image func(string, int64, int64), final func()) {
		var mu sync.Mutex
		var high, all int64
		return func(w string, done, total int64) {
				mu.Lock()
				defer mu.Unlock()
				if w != what || done < 0 || done > total || total == 0 || all != 0 && all != total {
					t.Errorf("%s: %s %d of %d", what, w, done, total)
				}
				high, all = max(high, done), total
			}, func() {
				if high != all {
					t.Errorf("%s ends at %d of %d", what, high, all)
				}
			}
	}
	o := fast()
	var final func()
	o.Progress, final = check("push")
	if err := Push(t.Context(), s, f.ref("p:1"), d, o); err != nil {
		t.Fatal(err)
	}
	final()
	dst := storetest.Open(t)
	for range 2 {
		o.Progress, final = check("pull")
		if _, err := Pull(t.Context(), dst, f.ref("p:1"), o); err != nil {
			t.Fatal(err)
		}
		final()
	}
}

func TestReferrers(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	base := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("base"), Size: 4}
	s := storetest.Open(t)
	var descs []ocispec.Descriptor
	for i := range 4 {
		descs = append(descs, storetest.MustPut(t, s, fmt.Sprintf("%s%d", f.ref("r:"), i), storetest.Spec{Seed: uint64(i), Subject: &base}))
	}
	var wg sync.WaitGroup
	for i, d := range descs {
		wg.Go(func() {
			if err := Push(t.Context(), s, fmt.Sprintf("%s%d", f.ref("r:"), i), d, fast()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Others overwrite the list at the same time; the last word may still be lost, but not usually all others.
	list := f.manifests["r"][strings.Replace(base.Digest.String(), ":", "-", 1)]
	var listed int
	for _, d := range descs {
		if strings.Contains(string(list.data), d.Digest.String()) {
			listed++
		}
	}
	if listed == 0 || !strings.Contains(string(list.data), "application/vnd.cryo.snapshot.v1") {
		t.Errorf("%d of 4 listed: %s", listed, list.data)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "c:1", storetest.Spec{Seed: 1, Segments: []uint64{1, 2}, Size: 1 << 20})
	ctx, cancel := context.WithCancel(t.Context())
	o := fast()
	o.Counts = new(Counts)
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || r.Header.Get("Range") != "" {
			return false
		}
		f.mu.Lock()
		data := f.blobs["c"][digest.Digest(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])]
		f.mu.Unlock()
		if len(data) < 1<<20 {
			return false
		}
		w.Write(data[:500_000])
		w.(http.Flusher).Flush()
		for deadline := time.Now().Add(quick.idle / 2); o.Counts.Moved() < 500_000 && time.Now().Before(deadline); { // until it has been read
			time.Sleep(time.Millisecond)
		}
		cancel()
		<-r.Context().Done()
		return true
	}
	s := storetest.Open(t)
	start := time.Now()
	_, err := Pull(ctx, s, f.ref("c:1"), o)
	if err == nil || ctx.Err() == nil || time.Since(start) > 5*time.Second {
		t.Fatalf("%v after %v", err, time.Since(start))
	}
	if !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("error: %v", err)
	}
	if e, _ := os.ReadDir(s.Root() + "/partial"); len(e) == 0 {
		t.Error("nothing is kept for the next attempt")
	}
	if tags, _ := s.Tags(t.Context()); len(tags) != 0 {
		t.Errorf("tagged: %v", tags)
	}
	f.forget()
	if _, err := Pull(t.Context(), s, f.ref("c:1"), fast()); err != nil {
		t.Fatal(err)
	}
	var ranges int
	for _, l := range f.log {
		if strings.Contains(l, "bytes=") {
			ranges++
		}
	}
	if ranges == 0 {
		t.Errorf("not resumed: %v", f.log)
	}
	if got, err := s.Resolve(t.Context(), f.ref("c:1")); err != nil || got.Digest != d.Digest {
		t.Error(err)
	}
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
}
