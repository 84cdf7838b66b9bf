package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/storetest"
)

// TestMirrorRanges reads parts of a blob while its mirror fails.
func TestMirrorRanges(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	const size, part = 1 << 20, 64 << 10
	src, top := pushed(t, f, "r:1", storetest.Spec{Seed: 1, Segments: []uint64{7}, Size: size})
	d := manifestOf(t, src, top).Layers[2]
	data := storetest.Bytes(7, size)
	for name, c := range map[string]struct {
		fault func(m *fake, n int, w http.ResponseWriter, r *http.Request) bool // at request n
		wrong bool
		least int // requests that the registry gets
	}{
		"works": {func(*fake, int, http.ResponseWriter, *http.Request) bool { return false }, false, 0},
		"200 for a range": {func(_ *fake, n int, w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write(data)
			return true
		}, false, size / part},
		"another range": {func(_ *fake, n int, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 1-%d/%d", part, size))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(data[1 : part+1])
			return true
		}, false, size / part},
		"416": {func(_ *fake, _ int, w http.ResponseWriter, r *http.Request) bool {
			status(416)(w, r)
			return true
		}, false, size / part},
		"another size": {func(_ *fake, _ int, w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Range", strings.Replace(r.Header.Get("Range"), "=", " ", 1)+"/5")
			w.WriteHeader(http.StatusPartialContent)
			return true
		}, false, size / part},
		"dies": {func(m *fake, n int, w http.ResponseWriter, _ *http.Request) bool {
			if n == 3 {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 2*part, 3*part-1, size))
				w.Header().Set("Content-Length", fmt.Sprint(part))
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(data[2*part : 2*part+5000])
				w.(http.Flusher).Flush()
				cut(w)
			}
			return false
		}, false, size/part - 3},
		"other bytes": {func(_ *fake, n int, w http.ResponseWriter, r *http.Request) bool {
			if n < 3 {
				return false
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, size)))
			return true
		}, true, size/part - 3},
	} {
		t.Run(name, func(t *testing.T) {
			m := mirrorOf(t, f)
			var mu sync.Mutex
			var n int
			m.fault = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, d.Digest.String()) {
					return false
				}
				mu.Lock()
				n++
				at := n
				mu.Unlock()
				return c.fault(m, at, w, r)
			}
			p, err := NewPuller(t.Context(), storetest.Open(t), f.ref("r:1"), by(t, "_default", first(m)))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			f.forget()
			g := p.Ranges()
			for off := int64(0); off < size; off += part {
				b := make([]byte, part)
				for again := false; ; again = true {
					if err := g.Read(t.Context(), d, off, b, false); err != nil {
						t.Fatal(err)
					}
					if bytes.Equal(b, data[off:off+part]) {
						break
					}
					if again || !c.wrong {
						t.Fatalf("other bytes at %d", off)
					}
					g.Damaged(d)
				}
			}
			if n := f.count("GET"); n < c.least || c.least == 0 && n > 0 {
				t.Errorf("the registry got %d requests", n)
			}
		})
	}
}

// TestMirrorLazily pulls lazily by a mirror that sends other bytes, which the reader and the pull find out, and dies.
func TestMirrorLazily(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	src, top := pushed(t, f, "d:1", storetest.Spec{Seed: 1, Segments: []uint64{7, 8}, Size: 300 << 10})
	m := mirrorOf(t, f)
	segments := manifestOf(t, src, top).Layers[2:]
	m.fault = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, segments[0].Digest.String()):
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, segments[0].Size)))
		case strings.HasSuffix(r.URL.Path, segments[1].Digest.String()):
			cut(w)
		default:
			return false
		}
		return true
	}
	s := storetest.Open(t)
	p := puller(t, s, f.ref("d:1"), by(t, "_default", first(m)))
	if err := p.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.ThroughCache()
	running := make(chan struct{})
	close(running)
	source := sourceOf(t, s, p)
	source.Damaged = p.Ranges().Damaged
	p.Lazily(Lazy{Source: source, Head: -1, Running: running, Filled: running})
	a := opened(t, p, segments[0])
	b := make([]byte, 100)
	if _, err := a.ReadAt(b, 200_000); err != nil || !bytes.Equal(b, make([]byte, 100)) {
		t.Fatalf("the mirror is not asked: %v", err)
	}
	if _, err := a.ReadAgain(b, 200_000); err != nil || !bytes.Equal(b, f.blobs["d"][segments[0].Digest][200_000:200_100]) {
		t.Errorf("the registry is not asked: %v", err)
	}
	if err := p.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestMirrorRests: a mirror that fails again and again is asked less often, and one that answers as often as ever.
func TestMirrorRests(t *testing.T) {
	m := &mirror{host: host{RegistryHost: docker.RegistryHost{Capabilities: docker.HostCapabilityResolve}}, resting: time.Minute}
	for fails, want := range []time.Duration{1, 2, 4, 8, 16, 32, 32} {
		m.rest()
		m.rest() // another request of the same time
		if left := time.Until(m.until).Round(time.Second); left != want*time.Minute || m.serves("1") {
			t.Errorf("after %d failures it is left out for %v", fails+1, left)
		}
		m.until = time.Time{}
	}
	if !m.serves("1") {
		t.Error("it is left out for good")
	}
}

// TestMirrorImage reads an image by a mirror that sends other blobs.
func TestMirrorImage(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	small, large := storetest.Bytes(1, 1000), storetest.Bytes(2, smallMost+1)
	f.put("base", small)
	f.put("base", large)
	m := mirrorOf(t, f)
	m.fault = func(w http.ResponseWriter, r *http.Request) bool {
		_, d, _ := strings.Cut(r.URL.Path, "/blobs/")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(make([]byte, len(f.blobs["base"][digest.Digest(d)]))))
		return true
	}
	i, err := NewImage(t.Context(), f.ref("base:1"), by(t, "_default", first(m)))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	read := func(data []byte) ([]byte, error) {
		rc, err := i.Fetch(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(data), Size: int64(len(data))})
		if err != nil {
			return nil, err
		}
		defer rc.Close()
		return io.ReadAll(rc)
	}
	if got, err := read(small); err != nil || !bytes.Equal(got, small) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := read(large); !errors.As(err, new(*MirrorError)) || !temporary(err) {
		t.Errorf("other bytes are taken: %v", err)
	}
	if got, err := read(large); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
