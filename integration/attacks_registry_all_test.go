package integration

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// hostile is a registry that serves what a forger has laid out, and whatever else comes to its owner's mind.
type hostile struct {
	address string
	mu      sync.Mutex
	asked   []string // paths; guarded by mu
}

// newHostile serves a manifest, and the layout's blobs, under any name. change may answer a request itself, and says whether it has.
func newHostile(t *testing.T, g *forger, m ocispec.Manifest, change func(w http.ResponseWriter, r *http.Request) bool) *hostile {
	t.Helper()
	manifest := g.add(t, m.MediaType, m)
	l, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{address: l.Addr().String()}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.asked = append(h.asked, r.URL.Path)
		h.mu.Unlock()
		if change(w, r) {
			return
		}
		d := digest.Digest(path.Base(r.URL.Path))
		if strings.Contains(r.URL.Path, "/manifests/") {
			d = manifest.Digest
			w.Header().Set("Content-Type", m.MediaType)
			w.Header().Set("Docker-Content-Digest", string(d))
		}
		if strings.Contains(r.URL.Path, "/referrers/") || d.Validate() != nil {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, g.path(d))
	})}
	go func() { _ = server.Serve(l) }() // it ends with the test
	t.Cleanup(func() { _ = server.Close() })
	return h
}

func (h *hostile) ref(name string) string { return h.address + "/hostile/" + name + ":1" }

// requests are the paths that were asked for.
func (h *hostile) requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// TestAttackForeignLayer has a layer that the registry lacks, and that its descriptor says to fetch elsewhere (case 33): nobody is asked there.
func TestAttackForeignLayer(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	g := newForger(t, freeze(t, []string{"rootfs"}))
	elsewhere := newHostile(t, g, g.manifest, func(http.ResponseWriter, *http.Request) bool { return false })
	for _, mediaType := range []string{image.MediaTypeRootFS, image.MediaTypeSegment} {
		m := g.manifest
		m.Layers = slices.Clone(m.Layers)
		i := slices.IndexFunc(m.Layers, func(d ocispec.Descriptor) bool { return d.MediaType == mediaType })
		m.Layers[i].URLs = []string{"http://" + elsewhere.address + "/v2/any/blobs/" + string(m.Layers[i].Digest)}
		h := newHostile(t, g, m, func(w http.ResponseWriter, r *http.Request) bool {
			if path.Base(r.URL.Path) != string(m.Layers[i].Digest) {
				return false
			}
			http.NotFound(w, r)
			return true
		})
		forget(t, b, h.ref("foreign"))
		refusedCheaply(t, b, "is gone", "pull", h.ref("foreign"), "--plain-http") // what has come is kept, for the next
		refusedCheaply(t, b, "is gone", "restore", h.ref("foreign"), "--plain-http", "--name", "foreign")
	}
	if asked := elsewhere.requests(); len(asked) > 0 {
		t.Errorf("asked elsewhere for %q", asked)
	}
}

// TestAttackRedirect has a registry that sends us on to addresses of the host itself and of its link, where clouds have their metadata (case 43): nobody is asked there.
func TestAttackRedirect(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	g := newForger(t, freeze(t, []string{"count"}))
	inside := newRegistry(t, "inside", lab.RegistryOptions{Host: b}) // on the host's loopback address, where only the host is
	for _, to := range []string{inside.Address, "localhost:" + port(t, inside.Address), "169.254.169.254:80"} {
		for _, kind := range []string{"/manifests/", "/blobs/", "token"} {
			h := newHostile(t, g, g.manifest, func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case kind == "token" && strings.Contains(r.URL.Path, "/manifests/"):
					w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+to+`/token",service="x"`)
					w.WriteHeader(http.StatusUnauthorized)
				case strings.Contains(r.URL.Path, kind):
					http.Redirect(w, r, "http://"+to+"/canary"+r.URL.Path, http.StatusTemporaryRedirect)
				default:
					return false
				}
				return true
			})
			forget(t, b, h.ref("redirect"))
			before := trace(t, b)
			r := harmless(t, b, nil, 64<<20, "pull", h.ref("redirect"), "--plain-http")
			words := "internal-address"
			if kind == "token" {
				words = "" // refused even before, or by the same rule
			}
			refusal(t, r, codeDenied, words)
			wantTrace(t, b, before, "blob ", "store /partial/") // of which a next pull goes on
		}
	}
	log, err := os.ReadFile(filepath.Join(inside.Dir, "registry.log"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "canary") || strings.Contains(string(log), "/token") {
		t.Errorf("the host's own service was asked: %s", log)
	}
}

func port(t *testing.T, address string) string {
	t.Helper()
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAttackSizes has manifests, configs and descriptors beyond their limits, from a registry (cases 31 and 32).
func TestAttackSizes(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	g := newForger(t, freeze(t, []string{"count"}))
	with := func(change func(m *ocispec.Manifest)) ocispec.Manifest {
		m := g.manifest
		m.Layers = slices.Clone(m.Layers)
		change(&m)
		return m
	}
	last := len(g.manifest.Layers) - 1
	for _, test := range []struct {
		name, words string
		m           ocispec.Manifest
	}{
		{"manifest of 5 MiB", "more than 4194304", with(func(m *ocispec.Manifest) { m.Annotations = map[string]string{"a": strings.Repeat("a", 5<<20)} })},
		{"more layers than there may be", "more than 4194304", with(func(m *ocispec.Manifest) { m.Layers = slices.Repeat(m.Layers[last:], 1<<15+1) })},
		{"config of 17 MiB", "more than", with(func(m *ocispec.Manifest) { m.Config = g.add(t, m.Config.MediaType, strings.Repeat("a", 17<<20)) })},
		{"config that is nested", "config", with(func(m *ocispec.Manifest) {
			m.Config = g.add(t, m.Config.MediaType, json.RawMessage(strings.Repeat("[", 9000)+strings.Repeat("]", 9000)))
		})},
		{"size of 2^60", "out of range", with(func(m *ocispec.Manifest) { m.Layers[last].Size = 1 << 60 })},
		{"size of -5", "out of range", with(func(m *ocispec.Manifest) { m.Layers[last].Size = -5 })},
		{"digest that is a path", "digest", with(func(m *ocispec.Manifest) { m.Layers[last].Digest = "../../../../etc/passwd" })},
		{"another algorithm", "not sha256", with(func(m *ocispec.Manifest) {
			m.Layers[last].Digest = digest.SHA512.FromString("a")
		})},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHostile(t, g, test.m, func(http.ResponseWriter, *http.Request) bool { return false })
			forget(t, b, h.ref("sizes"))
			for _, args := range [][]string{{"pull", h.ref("sizes"), "--plain-http"}, {"restore", h.ref("sizes"), "--plain-http", "--wait", "--name", "sizes"}} {
				before := trace(t, b)
				r := harmless(t, b, nil, 64<<20, args...)
				if args[0] == "pull" && r.Code == 0 { // what a config says is restore's to judge
					must(t, b.Cryo(t.Context(), "rm", h.ref("sizes")))
				} else {
					refusal(t, r, codeDamaged, test.words)
				}
				wantTrace(t, b, before, "blob ") // what has come is kept, for the next
			}
		})
	}
}

// TestAttackDrip has a manifest that comes at one byte in a second: the command ends when it is told to, and what was fetched goes again. That it gives up by itself,
// TestDripped of package registry shows at a faster clock.
func TestAttackDrip(t *testing.T) {
	_, b := pair(t)
	guarded(t, b)
	g := newForger(t, freeze(t, []string{"count"}))
	h := newHostile(t, g, g.manifest, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		w.Header().Set("Content-Type", g.manifest.MediaType)
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte(" "))
			w.(http.Flusher).Flush()
			time.Sleep(time.Second)
		}
		return true
	})
	before := trace(t, b)
	const at = 3 * time.Second
	r := broken(t, b, at, syscall.SIGTERM, "pull", h.ref("drip"), "--plain-http")
	if r.Code != codeInterrupted || r.Elapsed-at > mostDelay {
		t.Errorf("exit code %d, %s after it was told to end: %s", r.Code, r.Elapsed-at, r.Stderr)
	}
	wantTrace(t, b, before)
}
