package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// judging has a policy of one key, which is asked for or not.
func judging(t *testing.T, public string, required bool, doubt *error) Options {
	t.Helper()
	p, err := signature.NewPolicy(required, []string{public}, nil)
	if err != nil {
		t.Fatal(err)
	}
	o := fast()
	o.Judge = func(refs []string, d digest.Digest, all []signature.Attached, unread error) (err error) {
		*doubt, err = p.Judge(refs, d, all, unread)
		return err
	}
	return o
}

// TestSignatures sends a signature along, fetches it with the snapshot, and from the other store sends it to another repository.
func TestSignatures(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	private, public := storetest.Key(t)
	s, ctx := storetest.Open(t), t.Context()
	d := storetest.MustPut(t, s, f.ref("a:1"), withSegments(1, 1, 2))
	if err := s.Attach(ctx, []signature.Attached{storetest.SignFor(t, private, d, d)}); err != nil {
		t.Fatal(err)
	}
	var doubt error
	o := judging(t, public, true, &doubt)
	names := []string{"a:1", "b:2", "c:3"}
	for i, name := range names {
		if err := Push(ctx, s, f.ref(name), d, o); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		order := strings.Join(f.log, "\n")
		f.mu.Unlock()
		tag := "PUT /v2/" + strings.Replace(name, ":", "/manifests/", 1)
		if signed, named := strings.LastIndex(order, "PUT /v2/"+name[:1]+"/manifests/sha256-"), strings.LastIndex(order, tag); signed < 0 || named < signed {
			t.Errorf("%s has its name before its signature:\n%s", name, order)
		}
		s = storetest.Open(t)
		if _, err := Pull(ctx, s, f.ref(name), o); err != nil || doubt != nil {
			t.Fatal(i, err, doubt)
		}
		if all, err := s.Signatures(ctx, d.Digest); err != nil || len(all) != 1 {
			t.Errorf("%s: kept %+v, %v", name, all, err)
		}
	}
}

// TestSignRegistry signs what is in a registry, once.
func TestSignRegistry(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "a:1", withSegments(1, 1))
	private, public := storetest.Key(t)
	for n := range 2 {
		got, err := Sign(t.Context(), f.ref("a:1"), fast(), func(subject ocispec.Descriptor, have []signature.Attached) ([]signature.Attached, error) {
			if len(have) != n {
				t.Errorf("it has %d signatures, want %d", len(have), n)
			}
			if len(have) > 0 {
				return nil, nil
			}
			return []signature.Attached{storetest.SignFor(t, private, subject, subject)}, nil
		})
		if err != nil || got != d.Digest {
			t.Fatal(got, err)
		}
	}
	var doubt error
	if _, err := Pull(t.Context(), storetest.Open(t), f.ref("a:1"), judging(t, public, true, &doubt)); err != nil {
		t.Error(err)
	}
	f.seed("a", "image", ocispec.MediaTypeImageManifest, []byte(`{"schemaVersion":2}`))
	if _, err := Sign(t.Context(), f.ref("a:image"), fast(), nil); err == nil || !strings.Contains(err.Error(), "is not a cryo snapshot but") {
		t.Errorf("an image: %v", err)
	}
}

// TestJudge: what is not signed as it should be is not looked at any further, and nothing else of it is asked for.
func TestJudge(t *testing.T) {
	t.Parallel()
	private, public := storetest.Key(t)
	foreign, _ := storetest.Key(t)
	var f *fake
	var d ocispec.Descriptor
	list := func(signatures ...signature.Attached) {
		index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
		index.SchemaVersion = 2
		for _, a := range signatures {
			f.seed("a", a.Manifest.Descriptor.Digest.String(), ocispec.MediaTypeImageManifest, a.Manifest.Data)
			f.mu.Lock()
			f.put("a", a.Bundle.Data)
			f.mu.Unlock()
			index.Manifests = append(index.Manifests, a.Manifest.Descriptor)
		}
		data, _ := json.Marshal(index)
		f.fault = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/referrers/") {
				return false
			}
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			_, _ = w.Write(data)
			return true
		}
	}
	for _, test := range []struct {
		name  string
		set   func()
		words string // of the error, with the snapshot's name; empty: signed
	}{
		{"unsigned", func() {}, "signature: %s is not signed"},
		{"unsigned, with the API", func() { list() }, "signature: %s is not signed"},
		{"signed", func() { list(storetest.SignFor(t, private, d, d)) }, ""},
		{"foreign", func() { list(storetest.SignFor(t, foreign, d, d)) }, "signature: %s is signed by "},
		{"moved", func() {
			list(storetest.SignFor(t, private, ocispec.Descriptor{Digest: digest.FromString("another")}, d))
		}, "signature: %s has a signature of another snapshot"},
		{"of another subject", func() {
			list(storetest.SignFor(t, private, d, ocispec.Descriptor{Digest: digest.FromString("another")}))
		}, "signature: the signature of %s is damaged"},
		{"manifest that is gone", func() {
			list(storetest.SignFor(t, private, d, d))
			f.mu.Lock()
			for name, m := range f.manifests["a"] {
				if strings.Contains(string(m.data), signature.MediaType) {
					delete(f.manifests["a"], name)
				}
			}
			f.mu.Unlock()
		}, "signature: the signature of %s is damaged"},
		{"buried", func() {
			var all []signature.Attached
			for range 2 * signature.MaxAttached {
				all = append(all, storetest.SignFor(t, foreign, d, d))
			}
			list(append(all, storetest.SignFor(t, private, d, d))...)
		}, "signature: %s is signed by "},
		{"endless list", func() {
			f.fault = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/referrers/") {
					return false
				}
				w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
				w.Header().Set("Link", fmt.Sprintf(`<%s?n=1>; rel="next"`, r.URL.Path))
				_, _ = w.Write([]byte(`{"schemaVersion":2,"manifests":[]}`))
				return true
			}
		}, "pages"},
		{"list that fails", func() {
			f.fault = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/referrers/") {
					return false
				}
				refuse(w, http.StatusInternalServerError, "UNKNOWN")
				return true
			}
		}, "500"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f = newFake(t)
			_, d = pushed(t, f, "a:1", withSegments(1, 1))
			test.set()
			for _, required := range []bool{true, false} {
				f.forget()
				var doubt error
				s := storetest.Open(t)
				_, err := Pull(t.Context(), s, f.ref("a:1"), judging(t, public, required, &doubt))
				wrong := err
				if !required {
					wrong = doubt
				}
				words := strings.Replace(test.words, "%s", f.ref("a:1"), 1)
				says := func(err error) bool {
					if err == nil || words == "" {
						return err == nil && words == ""
					}
					judged := failure.Rule(err) == signature.Rule && errdefs.IsPermissionDenied(err)
					return strings.Contains(err.Error(), words) && judged == strings.HasPrefix(words, "signature: ")
				}
				if !says(wrong) || !required && err != nil {
					t.Errorf("required %v: got %v, doubt %v", required, err, doubt)
				}
				if err == nil {
					continue
				}
				m := snapshotIn(t, f)
				for _, l := range append(m.Layers, m.Config) {
					if f.count("GET /v2/a/blobs/"+l.Digest.String()) > 0 {
						t.Errorf("%s was fetched, though the snapshot was refused", l.MediaType)
					}
				}
				if n := f.count("GET /v2/a/"); n > 3+2*signature.MaxAttached+referrerPages {
					t.Errorf("%d requests", n)
				}
			}
		})
	}
}

func snapshotIn(t *testing.T, f *fake) ocispec.Manifest {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	data := f.manifests["a"]["1"].data
	m, err := store.ParseSnapshot("a:1", ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data)}, data)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
