package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
)

// fake is a registry in memory that does what the distribution specification says, and faults on request.
type fake struct {
	*httptest.Server
	// fault may answer a request itself; it says whether it did.
	fault func(w http.ResponseWriter, r *http.Request) bool

	mu        sync.Mutex
	blobs     map[string]map[digest.Digest][]byte // by repository
	manifests map[string]map[string]stored        // by repository and tag or digest
	uploads   int
	log       []string // method and path, body sizes left out
}

type stored struct {
	mediaType string
	data      []byte
}

func newFake(t testing.TB) *fake {
	t.Helper()
	f := unstarted()
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func unstarted() *fake {
	return &fake{blobs: make(map[string]map[digest.Digest][]byte), manifests: make(map[string]map[string]stored)}
}

// ref names something in the fake.
func (f *fake) ref(name string) string {
	_, host, _ := strings.Cut(f.URL, "://")
	return host + "/" + name
}

// count is how many requests there were that begin with prefix.
func (f *fake) count(prefix string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.log {
		if strings.HasPrefix(l, prefix) {
			n++
		}
	}
	return n
}

func (f *fake) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = nil
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.log = append(f.log, r.Method+" "+r.URL.Path+" "+r.Header.Get("Range"))
	f.mu.Unlock()
	if f.fault != nil && f.fault(w, r) {
		return
	}
	path := strings.TrimPrefix(r.URL.Path, "/v2/")
	for _, kind := range []struct {
		part  string
		serve func(http.ResponseWriter, *http.Request, string, string)
	}{{"/blobs/uploads/", f.serveUpload}, {"/blobs/", f.serveBlob}, {"/manifests/", f.serveManifest}} {
		if repo, name, ok := strings.Cut(path, kind.part); ok {
			kind.serve(w, r, repo, name)
			return
		}
	}
	refuse(w, http.StatusNotFound, "UNSUPPORTED") // referrers and the rest
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"errors":[{"code":%q,"message":"no"}]}`, code)
}

func (f *fake) serveUpload(w http.ResponseWriter, r *http.Request, repo, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := r.URL.Query()
	if r.Method == http.MethodPost {
		if data, ok := f.blobs[q.Get("from")][digest.Digest(q.Get("mount"))]; ok {
			f.put(repo, data)
			w.WriteHeader(http.StatusCreated)
			return
		}
		f.uploads++
		w.Header().Set("Location", fmt.Sprintf("/v2/%s/blobs/uploads/%d?state=x", repo, f.uploads))
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if r.Method == http.MethodDelete {
		f.uploads--
		w.WriteHeader(http.StatusNoContent)
		return
	}
	f.mu.Unlock()
	data, err := io.ReadAll(r.Body)
	f.mu.Lock()
	if err != nil {
		return
	}
	if d := digest.FromBytes(data); d.String() != q.Get("digest") || q.Get("state") != "x" || name == "" {
		refuse(w, http.StatusBadRequest, "DIGEST_INVALID")
		return
	}
	f.put(repo, data)
	w.Header().Set("Docker-Content-Digest", q.Get("digest"))
	w.WriteHeader(http.StatusCreated)
}

func (f *fake) put(repo string, data []byte) {
	if f.blobs[repo] == nil {
		f.blobs[repo] = make(map[digest.Digest][]byte)
	}
	f.blobs[repo][digest.FromBytes(data)] = data
}

func (f *fake) serveBlob(w http.ResponseWriter, r *http.Request, repo, name string) {
	f.mu.Lock()
	data, ok := f.blobs[repo][digest.Digest(name)]
	f.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN")
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

func (f *fake) serveManifest(w http.ResponseWriter, r *http.Request, repo, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Method == http.MethodPut {
		data, _ := io.ReadAll(r.Body)
		if status := f.putManifest(repo, name, r.Header.Get("Content-Type"), data); status != http.StatusCreated {
			refuse(w, status, "MANIFEST_BLOB_UNKNOWN")
			return
		}
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
		w.WriteHeader(http.StatusCreated)
		return
	}
	m, ok := f.manifests[repo][name]
	if !ok {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN")
		return
	}
	w.Header().Set("Content-Type", m.mediaType)
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(m.data).String())
	w.Header().Set("Content-Length", fmt.Sprint(len(m.data)))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		w.Write(m.data)
	}
}

// putManifest insists on every blob being there, as registries do.
func (f *fake) putManifest(repo, name, mediaType string, data []byte) int {
	var m ocispec.Manifest
	if json.Unmarshal(data, &m) != nil {
		return http.StatusBadRequest
	}
	for _, d := range slices.Concat([]ocispec.Descriptor{m.Config}, m.Layers) {
		if _, ok := f.blobs[repo][d.Digest]; !ok && d.Digest != "" {
			return http.StatusBadRequest
		}
	}
	var i ocispec.Index
	if json.Unmarshal(data, &i) != nil {
		return http.StatusBadRequest
	}
	for _, d := range i.Manifests {
		if _, ok := f.manifests[repo][d.Digest.String()]; !ok && strings.Contains(mediaType, "index") && !strings.HasPrefix(name, "sha256-") {
			return http.StatusBadRequest
		}
	}
	if f.manifests[repo] == nil {
		f.manifests[repo] = make(map[string]stored)
	}
	f.manifests[repo][name] = stored{mediaType, data}
	f.manifests[repo][digest.FromBytes(data).String()] = stored{mediaType, data}
	return http.StatusCreated
}

// seed puts a manifest there without asking for its blobs.
func (f *fake) seed(repo, tag, mediaType string, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.manifests[repo] == nil {
		f.manifests[repo] = make(map[string]stored)
	}
	f.manifests[repo][tag] = stored{mediaType, data}
	f.manifests[repo][digest.FromBytes(data).String()] = stored{mediaType, data}
}

// cut ends a connection without an answer.
func cut(http.ResponseWriter) { panic(http.ErrAbortHandler) }

// Push sends a snapshot of a store by itself, and gives it the name ref.
func Push(ctx context.Context, src *store.Store, ref string, desc ocispec.Descriptor, o Options) error {
	p, err := NewPusher(ctx, src, ref, o)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Finish(ctx, desc)
}
