package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// each lets a fault happen n times for each method and blob or manifest.
func each(n int, match func(*http.Request) bool, fault func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request) bool {
	var mu sync.Mutex
	seen := make(map[string]int)
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !match(r) {
			return false
		}
		key := r.Method + r.URL.Path
		if d := r.URL.Query().Get("digest"); d != "" {
			key = r.Method + d
		}
		mu.Lock()
		seen[key]++
		hit := seen[key] <= n
		mu.Unlock()
		if hit {
			fault(w, r)
		}
		return hit
	}
}

func status(code int, header ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(code)
	}
}

func method(m, part string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == m && strings.Contains(r.URL.Path, part) }
}

func TestPushGoesOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		n     int
		match func(*http.Request) bool
		fault func(f *fake) func(http.ResponseWriter, *http.Request)
	}{
		{"503 on HEAD", 2, method("HEAD", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) { return status(503) }},
		{"500 on POST", 2, method("POST", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) { return status(500) }},
		{"503 on PUT", 3, method("PUT", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) { return status(503) }},
		{"429 on PUT", 1, method("PUT", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) { return status(429) }},
		{"429 with Retry-After", 1, method("HEAD", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) { return status(429, "Retry-After", "0") }},
		{"401 on PUT", 1, method("PUT", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) { return status(401) }},
		{"upload forgotten", 1, method("PUT", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) { return status(404) }},
		{"cut before the answer", 2, method("PUT", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); cut(w) }
		}},
		{"cut while sending", 3, method("PUT", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) { io.CopyN(io.Discard, r.Body, 300); cut(w) }
		}},
		{"answer lost", 1, method("PUT", "/blobs/"), func(f *fake) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) {
				data, _ := io.ReadAll(r.Body)
				f.mu.Lock()
				f.put("g", data)
				f.mu.Unlock()
				cut(w)
			}
		}},
		{"cut on POST", 2, method("POST", ""), func(*fake) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) { cut(w) }
		}},
		{"503 on manifest", 2, method("PUT", "/manifests/"), func(*fake) func(http.ResponseWriter, *http.Request) { return status(503) }},
		{"stalls while sending", 1, method("PUT", "/blobs/"), func(*fake) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) {
				if r.ContentLength < 1<<20 {
					status(503)(w, r)
					return
				}
				time.Sleep(2 * quick.idle) // the context does not end while the body is unread
				cut(w)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.fault = each(c.n, c.match, c.fault(f))
			s, b := storetest.Open(t), testBase("", 2)
			size := 1 << 20
			if c.name == "stalls while sending" {
				size = 16 << 20 // more than fits into buffers of sockets
			}
			d := storetest.MustPut(t, s, f.ref("g:1"), storetest.Spec{Seed: 1, Segments: []uint64{1, 2}, Size: size, ChainID: b.ChainID()})
			if n, err := pushImage(t.Context(), s, f.ref("g:1"), d, b, fast()); err != nil || n.NoImage != nil {
				t.Fatal(n, err)
			}
			f.fault = nil
			if i := indexOf(t, f, "g", "1"); len(i.Manifests) != 2 {
				t.Errorf("the name stands for %+v", i)
			}
			pulled(t, f, "g:1", d)
		})
	}
}

func TestPullGoesOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		n     int
		match func(*http.Request) bool
		fault func(w http.ResponseWriter, r *http.Request, data []byte)
	}{
		{"503", 3, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request, _ []byte) { status(503)(w, r) }},
		{"503 on manifest", 3, method("GET", "/manifests/"), func(w http.ResponseWriter, r *http.Request, _ []byte) { status(503)(w, r) }},
		{"cut on manifest", 2, method("GET", "/manifests/"), func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			w.Header().Set("Content-Length", "2000")
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			w.Write([]byte("{"))
			cut(w)
		}},
		{"cut at once", 2, method("GET", "/blobs/"), func(w http.ResponseWriter, _ *http.Request, _ []byte) { cut(w) }},
		{"cut again and again", 9, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request, data []byte) {
			serve(w, r, data, len(data)/10, nil)
			cut(w)
		}},
		{"no ranges", 3, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request, data []byte) {
			r.Header.Del("Range")
			serve(w, r, data, len(data)/2, nil)
			cut(w)
		}},
		{"wrong range", 2, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request, data []byte) {
			if r.Header.Get("Range") == "" {
				serve(w, r, data, len(data)/2, nil)
				cut(w)
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(data)-1, len(data)))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(data)
		}},
		{"416", 2, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request, data []byte) {
			if r.Header.Get("Range") == "" {
				serve(w, r, data, len(data)/2, nil)
				cut(w)
			}
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		}},
		{"stalls", 1, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request, data []byte) {
			serve(w, r, data, len(data)/2, nil)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
		{"flipped once", 1, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request, data []byte) {
			bad := bytes.Clone(data)
			bad[len(bad)/2] ^= 1
			w.Write(bad)
		}},
		{"flipped manifest once", 1, method("GET", "/manifests/"), func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
			bad := bytes.Clone(data)
			bad[len(bad)/2] ^= 1
			w.Write(bad)
		}},
		{"slow", 1, method("GET", "/blobs/"), func(w http.ResponseWriter, r *http.Request, data []byte) {
			for i := range 10 {
				w.Write(data[len(data)*i/10 : len(data)*(i+1)/10])
				w.(http.Flusher).Flush()
				time.Sleep(quick.idle / 5)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			s, b := storetest.Open(t), testBase("", 1)
			d := storetest.MustPut(t, s, f.ref("g:1"), storetest.Spec{Seed: 1, Segments: []uint64{1}, Size: 2 << 20, ChainID: b.ChainID()})
			if n, err := pushImage(t.Context(), s, f.ref("g:1"), d, b, fast()); err != nil || n.NoImage != nil {
				t.Fatal(n, err)
			}
			f.fault = each(c.n, c.match, func(w http.ResponseWriter, r *http.Request) {
				f.mu.Lock()
				name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
				data, ok := f.blobs["g"][digest.Digest(name)]
				if !ok {
					data = f.manifests["g"][name].data
				}
				f.mu.Unlock()
				c.fault(w, r, data)
			})
			pulled(t, f, "g:1", d)
		})
	}
}

// serve answers with the first n bytes of what was asked for.
func serve(w http.ResponseWriter, r *http.Request, data []byte, n int, _ error) {
	var from int
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	}
	w.Write(data[from:min(from+n, len(data))])
	w.(http.Flusher).Flush()
}

// Whatever arrives damaged, again and again, is told and nothing of it is tagged.
func TestPullDamaged(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	src, d := pushed(t, f, "d:1", withSegments(1, 1))
	m := manifestOf(t, src, d)
	for i, l := range append(m.Layers, m.Config) {
		for name, change := range map[string]func([]byte) []byte{
			"flipped":   func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/3] ^= 0x10; return b },
			"truncated": func(b []byte) []byte { return b[:len(b)-1] },
			"longer":    func(b []byte) []byte { return append(bytes.Clone(b), 0) },
		} {
			t.Run(fmt.Sprintf("%s %s", name, l.MediaType), func(t *testing.T) {
				f.fault = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method != "GET" || !strings.HasSuffix(r.URL.Path, l.Digest.String()) {
						return false
					}
					f.mu.Lock()
					data := f.blobs["d"][l.Digest]
					f.mu.Unlock()
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(change(data)))
					return true
				}
				s := storetest.Open(t)
				_, err := Pull(t.Context(), s, f.ref("d:1"), fast())
				var hint interface{ Hint() string }
				if err == nil || !errors.As(err, &hint) || !errdefs.IsDataLoss(err) && name != "truncated" {
					t.Errorf("layer %d: %v", i, err)
				}
				if tags, _ := s.Tags(t.Context()); len(tags) != 0 {
					t.Errorf("tagged: %v", tags)
				}
				if err := storetest.CheckBlobs(s); err != nil {
					t.Error(err)
				}
				// It heals.
				f.fault = nil
				if _, err := Pull(t.Context(), s, f.ref("d:1"), fast()); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		}
	}
	t.Run("gone", func(t *testing.T) {
		f.fault = each(99, func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, m.Layers[0].Digest.String()) }, status(404))
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("d:1"), fast()); !errdefs.IsDataLoss(err) {
			t.Error(err)
		}
	})
}

func manifestOf(t *testing.T, s *store.Store, d ocispec.Descriptor) ocispec.Manifest {
	t.Helper()
	data, err := store.ReadAll(t.Context(), s, d, store.MaxManifest)
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPullDisk has a disk that fails, and one that the kernel has made read-only since: that is not the registry's fault.
func TestPullDisk(t *testing.T) {
	r := repo{}
	if err := r.classify(t.Context(), fmt.Errorf("write blob: %w", &fs.PathError{Op: "write", Path: "/partial", Err: syscall.EIO})); errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, ""); err != nil {
		t.Skipf("mount a file system: %v", err)
	}
	defer unix.Unmount(root, unix.MNT_DETACH)
	f := newFake(t)
	pushed(t, f, "d:1", withSegments(1, 1))
	s, err := store.Open(root)
	if err == nil {
		err = unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = Pull(t.Context(), s, f.ref("d:1"), fast())
	if !errdefs.IsInternal(err) || errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "the disk under") {
		t.Errorf("%T: %v", err, err)
	}
}

func TestPullHostileManifest(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	src, d := pushed(t, f, "h:1", withSegments(1))
	good := manifestOf(t, src, d)
	change := func(fn func(m *ocispec.Manifest)) []byte {
		m := good
		m.Layers = append([]ocispec.Descriptor(nil), good.Layers...)
		fn(&m)
		data, _ := json.Marshal(m)
		return data
	}
	const oci = ocispec.MediaTypeImageManifest
	for name, c := range map[string]struct {
		mediaType string
		data      []byte
		kind      func(error) bool
	}{
		"index":         {ocispec.MediaTypeImageIndex, []byte(`{"schemaVersion":2,"manifests":[]}`), errdefs.IsDataLoss},
		"image":         {oci, change(func(m *ocispec.Manifest) { m.ArtifactType = "" }), errdefs.IsDataLoss},
		"other":         {oci, change(func(m *ocispec.Manifest) { m.ArtifactType = "application/x" }), errdefs.IsDataLoss},
		"json":          {oci, []byte(`{"schemaVersion":2`), errdefs.IsDataLoss},
		"trailing":      {oci, append(change(func(*ocispec.Manifest) {}), "{}"...), errdefs.IsDataLoss},
		"path":          {oci, change(func(m *ocispec.Manifest) { m.Layers[0].Digest = "sha256:../../../../../../etc/passwd" }), errdefs.IsDataLoss},
		"sha512":        {oci, change(func(m *ocispec.Manifest) { m.Layers[0].Digest = digest.Digest("sha512:" + strings.Repeat("a", 128)) }), errdefs.IsDataLoss},
		"negative":      {oci, change(func(m *ocispec.Manifest) { m.Layers[0].Size = -1 }), errdefs.IsDataLoss},
		"huge blob":     {oci, change(func(m *ocispec.Manifest) { m.Layers[0].Size = 1 << 60 }), errdefs.IsDataLoss},
		"two sizes":     {oci, change(func(m *ocispec.Manifest) { l := m.Layers[0]; l.Size++; m.Layers = append(m.Layers, l) }), errdefs.IsDataLoss},
		"no digest":     {oci, change(func(m *ocispec.Manifest) { m.Config.Digest = "" }), errdefs.IsDataLoss},
		"many layers":   {oci, change(func(m *ocispec.Manifest) { m.Layers = make([]ocispec.Descriptor, store.MaxLayers+1) }), errdefs.IsDataLoss},
		"huge manifest": {oci, append(change(func(*ocispec.Manifest) {}), bytes.Repeat([]byte(" "), store.MaxManifest)...), errdefs.IsDataLoss},
		"other type":    {oci, change(func(m *ocispec.Manifest) { m.MediaType = ocispec.MediaTypeImageIndex }), errdefs.IsDataLoss},
	} {
		t.Run(name, func(t *testing.T) {
			f.seed("h", "bad", c.mediaType, c.data)
			s := storetest.Open(t)
			_, err := Pull(t.Context(), s, f.ref("h:bad"), fast())
			var hint interface{ Hint() string }
			if !c.kind(err) || !errors.As(err, &hint) || len(err.Error()) > 1000 {
				t.Error(err)
			}
			if n := storetest.Count(t, s); n != 0 {
				t.Errorf("%d blobs are there", n)
			}
		})
	}
	t.Run("another digest than asked for", func(t *testing.T) {
		f.fault = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", oci)
			w.Write(change(func(m *ocispec.Manifest) { m.Annotations = map[string]string{"a": "b"} }))
			return true
		}
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("h@"+d.Digest.String()), fast()); !errdefs.IsDataLoss(err) {
			t.Error(err)
		}
	})
}

func TestPushDamaged(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, f.ref("d:1"), withSegments(1, 1))
	l := manifestOf(t, s, d).Layers[2]
	path := filepath.Join(s.Layout(), "blobs", "sha256", l.Digest.Encoded())
	data, _ := os.ReadFile(path)
	data[7] ^= 1
	os.WriteFile(path, data, 0o600)
	err := Push(t.Context(), s, f.ref("d:1"), d, fast())
	if !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "blob "+l.Digest.String()+" here is damaged") {
		t.Error(err)
	}
	os.Remove(path)
	if err := Push(t.Context(), s, f.ref("d:1"), d, fast()); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if len(f.manifests["d"]) != 0 {
		t.Error("the manifest was sent")
	}
}

// TestDripped has a manifest, and then a layer, of which a byte comes now and then: that is next to nothing, and the pull ends.
func TestDripped(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"/manifests/", "/blobs/"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			pushed(t, f, "g:1", storetest.Spec{Seed: 1, Segments: []uint64{1}, Size: 2 << 20})
			f.fault = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != "GET" || !strings.Contains(r.URL.Path, part) {
					return false
				}
				w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
				for r.Context().Err() == nil {
					_, _ = w.Write([]byte(" "))
					w.(http.Flusher).Flush()
					time.Sleep(20 * time.Millisecond)
				}
				return true
			}
			slow := quick
			slow.idle, slow.attempts = 200*time.Millisecond, 2
			began := time.Now()
			_, err := Pull(t.Context(), storetest.Open(t), f.ref("g:1"), Options{timing: slow})
			if err == nil || !strings.Contains(err.Error(), "next to none") || time.Since(began) > 10*time.Second {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		})
	}
}

// TestDocuments: answers that are documents are counted as they come, and blobs are not, wherever they come from.
func TestDocuments(t *testing.T) {
	many := []byte("[" + strings.Repeat("{},", 1<<17) + "{}]")
	for _, test := range []struct {
		path, from string
		refused    bool
	}{
		{"/v2/a/manifests/x", "", true},
		{"/v2/a/referrers/x", "", true},
		{"/token", "", true},
		{"/v2/a/blobs/x", "", false},
		{"/storage/x", "/v2/a/blobs/x", false},
		{"/storage/x", "/v2/a/manifests/x", true},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://r.example.com"+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if test.from != "" {
			first, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://r.example.com"+test.from, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Response = &http.Response{Request: first}
		}
		resp, err := bounded{answers(many)}.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); (err != nil) != test.refused || test.refused && !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// answers answers with JSON.
type answers []byte

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/vnd.oci.image.index.v1+json"}}, Body: io.NopCloser(bytes.NewReader(a)), Request: req}, nil
}
