package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// mirrorOf is another registry with the same content, which notes what it is asked for and with which credentials.
func mirrorOf(t *testing.T, f *fake) *fake {
	t.Helper()
	m := newFake(t)
	f.mu.Lock()
	defer f.mu.Unlock()
	m.blobs, m.manifests = f.blobs, f.manifests
	return m
}

// asked are the requests that a fake gets from now on.
func (f *fake) asked() func() []*http.Request {
	var mu sync.Mutex
	var all []*http.Request
	fault := f.fault
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		all = append(all, r)
		mu.Unlock()
		return fault != nil && fault(w, r)
	}
	return func() []*http.Request {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// by are options with a hosts.toml of this content for a registry, or for all.
func by(t *testing.T, registry, content string) Options {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, registry), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, registry, "hosts.toml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	o := fast()
	o.Hosts = dir
	return o
}

// first is the part of hosts.toml with a mirror that may pull and resolve.
func first(m *fake) string {
	return fmt.Sprintf("[host.%q]\ncapabilities = ['pull', 'resolve']\n", m.URL)
}

func (f *fake) host() string { return strings.TrimSuffix(f.ref(""), "/") }

// pullBy pulls a snapshot and compares it.
func pullBy(t *testing.T, ref string, want ocispec.Descriptor, o Options) {
	t.Helper()
	s := storetest.Open(t)
	d, err := Pull(t.Context(), s, ref, o)
	if err != nil {
		t.Fatal(err)
	}
	if d.Digest != want.Digest {
		t.Errorf("pulled %s, want %s", d.Digest, want.Digest)
	}
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestMirror has a mirror with all that the registry has: the registry is asked for nothing, and each request names it.
func TestMirror(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "a/m:1", withSegments(1, 1, 2, 3))
	for name, dir := range map[string]string{"its own": strings.Replace(f.host(), ":", "_", 1) + "_", "plain": f.host(), "default": "_default"} {
		t.Run(name, func(t *testing.T) {
			m := mirrorOf(t, f)
			requests := m.asked()
			f.forget()
			o := by(t, dir, first(m))
			pullBy(t, f.ref("a/m:1"), d, o)
			pullBy(t, f.ref("a/m@"+d.Digest.String()), d, o)
			if got, err := Resolve(t.Context(), f.ref("a/m:1"), o); err != nil || got.Digest != d.Digest {
				t.Errorf("Resolve: %v, %v", got, err)
			}
			if n := f.count(""); n != 0 {
				t.Errorf("the registry got %d requests", n)
			}
			for _, r := range requests() {
				if r.URL.Query().Get("ns") != f.host() {
					t.Errorf("%s has no ns", r.URL)
				}
			}
		})
	}
}

// TestMirrorFails has a mirror fail in many ways. The pull is complete each time, and not damaged.
func TestMirrorFails(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	src, d := pushed(t, f, "m:1", withSegments(1, 1, 2, 3))
	segments := manifestOf(t, src, d).Layers[2:]
	other := bytes.Repeat([]byte("x"), int(segments[0].Size))
	get := func(part string, fault func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, part) {
				return false
			}
			fault(w, r)
			return true
		}
	}
	segment := segments[0].Digest.String()
	for name, c := range map[string]struct {
		fault func(http.ResponseWriter, *http.Request) bool
		most  int // requests that the mirror gets; 0: at will
		used  bool
	}{
		"404":                     {get("/", status(404)), 0, false},
		"400":                     {get("/", status(400)), 0, false},
		"401":                     {get("/", status(401)), 1, false},
		"403":                     {get("/", status(403)), 1, false},
		"500":                     {get("/", status(500)), 1, false},
		"429":                     {get("/", status(429, "Retry-After", "60")), 1, false},
		"no answer":               {get("/", func(w http.ResponseWriter, _ *http.Request) { cut(w) }), 1, false},
		"token service elsewhere": {get("/", status(401, "WWW-Authenticate", `Bearer realm="http://10.0.0.1/token",service="x"`)), 1, false},
		"sends us on to nowhere":  {get("/", status(307, "Location", "http://127.0.0.1:1/")), 1, false},
		"stalls":                  {get("/", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), 1, false},
		"no such blob":            {get("/blobs/"+segment, status(404)), 0, true},
		"other bytes":             {get("/blobs/"+segment, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(other) }), 0, true},
		"a page instead":          {get("/blobs/"+segment, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }), 0, true},
		"other manifest": {get("/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			w.Header().Set("Docker-Content-Digest", d.Digest.String())
			_, _ = io.WriteString(w, "{}")
		}), 0, true},
		"another media type": {get("/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			_, _ = w.Write(f.manifests["m"]["1"].data)
		}), 0, true},
		"cut blob": {get("/blobs/"+segment, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(segments[0].Size))
			_, _ = w.Write(f.blobs["m"][segments[0].Digest][:1000])
			w.(http.Flusher).Flush()
			cut(w)
		}), 0, true},
		"short blob": {get("/blobs/"+segment, func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush() // chunked
			_, _ = w.Write(f.blobs["m"][segments[0].Digest][:1000])
		}), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := mirrorOf(t, f)
			m.fault = c.fault
			f.forget()
			o := by(t, "_default", first(m))
			o.Concurrency = 1 // for the count
			pullBy(t, f.ref("m:1"), d, o)
			if n := m.count(""); n == 0 || c.most > 0 && n > c.most {
				t.Errorf("the mirror got %d requests", n)
			}
			all := len(segments) + 3 // and the manifest, the config, index and CRIU's files
			if n := f.count("GET /v2/m/"); n == 0 || c.used && n > all/2 {
				t.Errorf("the registry got %d requests", n)
			}
		})
	}
	t.Run("down", func(t *testing.T) {
		m := mirrorOf(t, f)
		o := by(t, "_default", first(m))
		m.Close()
		pullBy(t, f.ref("m:1"), d, o)
	})
	t.Run("no TLS", func(t *testing.T) {
		m := mirrorOf(t, f)
		pullBy(t, f.ref("m:1"), d, by(t, "_default", strings.Replace(first(m), "http:", "https:", 1)))
	})
	t.Run("slow to connect", func(t *testing.T) {
		o := by(t, "_default", fmt.Sprintf("[host.'http://%s']\ndial_timeout = '50ms'\n", full(t)))
		begun := time.Now()
		pullBy(t, f.ref("m:1"), d, o)
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("only the registry's error counts", func(t *testing.T) {
		m := mirrorOf(t, f)
		m.fault = get("/", status(401))
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("m:none"), by(t, "_default", first(m))); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
	t.Run("the registry is damaged, too", func(t *testing.T) {
		m := mirrorOf(t, f)
		m.fault = get("/blobs/"+segment, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(other) })
		f.fault = m.fault
		defer func() { f.fault = nil }()
		f.forget()
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("m:1"), by(t, "_default", first(m))); !errors.Is(err, store.ErrCorrupt) {
			t.Error(err)
		}
		if n := f.count("GET /v2/m/blobs/" + segment); n != damageAttempts {
			t.Errorf("the registry was asked %d times", n)
		}
	})
}

// full returns an address whose listener takes no connection any more, so that connecting takes as long as it may.
func full(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	local := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err := errors.Join(unix.Bind(fd, local), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(c) })
		if err := unix.Connect(c, at); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

// TestMirrorsInOrder has several mirrors, with different capabilities.
func TestMirrorsInOrder(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "m:1", withSegments(1, 1, 2))
	tests := map[string]struct {
		capabilities [2]string
		tags, blobs  [3]bool // whether the first, the second and the registry are asked
	}{
		"both":           {[2]string{"'pull', 'resolve'", "'pull', 'resolve'"}, [3]bool{true, false, false}, [3]bool{true, false, false}},
		"pull":           {[2]string{"'pull'", "'pull', 'resolve'"}, [3]bool{false, true, false}, [3]bool{true, false, false}},
		"resolve":        {[2]string{"'resolve'", "'pull'"}, [3]bool{true, false, false}, [3]bool{false, true, false}},
		"push":           {[2]string{"'push'", "'pull'"}, [3]bool{false, false, true}, [3]bool{false, true, false}},
		"none can":       {[2]string{"'push'", "'push'"}, [3]bool{false, false, true}, [3]bool{false, false, true}},
		"all, if unsaid": {[2]string{"", ""}, [3]bool{true, false, false}, [3]bool{true, false, false}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := mirrorOf(t, f), mirrorOf(t, f)
			f.forget()
			config := ""
			for i, m := range []*fake{a, b} {
				config += fmt.Sprintf("[host.%q]\n", m.URL)
				if c.capabilities[i] != "" {
					config += "capabilities = [" + c.capabilities[i] + "]\n"
				}
			}
			pullBy(t, f.ref("m:1"), d, by(t, "_default", config))
			for i, m := range []*fake{a, b, f} {
				if n := m.count("GET /v2/m/manifests/1"); n > 0 != c.tags[i] {
					t.Errorf("host %d got %d requests for the tag", i, n)
				}
				if n := m.count("GET /v2/m/blobs/"); n > 0 != c.blobs[i] {
					t.Errorf("host %d got %d requests for blobs", i, n)
				}
			}
		})
	}
	t.Run("what one has not, the next has", func(t *testing.T) {
		a, b := mirrorOf(t, f), mirrorOf(t, f)
		a.fault = func(w http.ResponseWriter, r *http.Request) bool {
			status(404)(w, r)
			return true
		}
		f.forget()
		pullBy(t, f.ref("m:1"), d, by(t, "_default", first(a)+first(b)))
		if n := f.count(""); n > 0 || a.count("") == 0 {
			t.Errorf("the registry got %d requests, the first mirror %d", n, a.count(""))
		}
	})
	t.Run("pushes go to the registry", func(t *testing.T) {
		m := mirrorOf(t, f)
		s := storetest.Open(t)
		d := storetest.MustPut(t, s, f.ref("p:1"), withSegments(9, 9))
		if err := Push(t.Context(), s, f.ref("p:1"), d, by(t, "_default", fmt.Sprintf("[host.%q]\n", m.URL))); err != nil {
			t.Fatal(err)
		}
		if n := m.count(""); n > 0 {
			t.Errorf("the mirror got %d requests", n)
		}
	})
	t.Run("another server", func(t *testing.T) {
		m := mirrorOf(t, f)
		f.forget()
		pullBy(t, f.ref("m:1"), d, by(t, "_default", fmt.Sprintf("server = %q\n", m.URL)))
		if n := f.count(""); n > 0 {
			t.Errorf("the registry got %d requests", n)
		}
	})
	t.Run("a file that is no TOML", func(t *testing.T) {
		pullBy(t, f.ref("m:1"), d, by(t, "_default", "{"))
	})
	t.Run("a certificate that is not there", func(t *testing.T) {
		_, err := Pull(t.Context(), storetest.Open(t), f.ref("m:1"), by(t, "_default", first(mirrorOf(t, f))+"ca = 'none.crt'\n"))
		if !errdefs.IsInvalidArgument(err) {
			t.Error(err)
		}
	})
}
