package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// testBase is a base image with so many layers, which is called ref.
func testBase(ref string, layers int) *Base {
	content := make(map[digest.Digest][]byte)
	var m ocispec.Manifest
	var config ocispec.Image
	for n := range layers {
		data := storetest.Bytes(uint64(1000+n), 40<<10)
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(data), Size: int64(len(data))}
		content[d.Digest] = data
		m.Layers = append(m.Layers, d)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromString(fmt.Sprint(n)))
	}
	parts := make([][]byte, 2)
	for i, v := range []any{m, config} {
		var err error
		if parts[i], err = json.Marshal(v); err != nil {
			panic(err)
		}
	}
	b, err := image.ParseRunnableBase(parts[0], parts[1])
	if err != nil {
		panic(err)
	}
	return &Base{RunnableBase: b, Ref: ref, Open: func(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		data, ok := content[d.Digest]
		if !ok {
			return nil, fmt.Errorf("layer %s: %w", d.Digest, errdefs.ErrNotFound)
		}
		return io.NopCloser(bytes.NewReader(data)), nil
	}}
}

// pushImage sends a snapshot and the image that stands on a base image; nil: there is none.
func pushImage(ctx context.Context, s *store.Store, ref string, d ocispec.Descriptor, b *Base, o Options) (Named, error) {
	p, err := NewPusher(ctx, s, ref, o)
	if err != nil {
		return Named{}, err
	}
	defer p.Close()
	p.WithImage(func(context.Context) (*Base, error) {
		if b == nil {
			return nil, failure.New(errdefs.ErrNotFound, "", "there is no base image")
		}
		return b, nil
	})
	err = p.Finish(ctx, d)
	return p.Named(), err
}

// images is a snapshot on a base image of two layers.
func images(t *testing.T, f *fake, name string) (*store.Store, ocispec.Descriptor, *Base) {
	t.Helper()
	s, b := storetest.Open(t), testBase(f.ref("base:1"), 2)
	return s, storetest.MustPut(t, s, f.ref(name), storetest.Spec{Seed: 1, Segments: []uint64{1, 2}, ChainID: b.ChainID()}), b
}

// indexOf reads what a name of a registry stands for.
func indexOf(t *testing.T, f *fake, repo, name string) (i ocispec.Index) {
	t.Helper()
	m := f.manifests[repo][name]
	if m.mediaType != ocispec.MediaTypeImageIndex {
		t.Fatalf("%s:%s stands for %s", repo, name, m.mediaType)
	}
	if err := json.Unmarshal(m.data, &i); err != nil {
		t.Fatal(err)
	}
	return i
}

// TestPushImage makes the name stand for an index of an image and the snapshot, whose layers are mounted where they can be.
func TestPushImage(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s, d, b := images(t, f, "a:1")
	for _, l := range b.Layers()[:1] { // the registry has the other one nowhere
		rc, err := b.Open(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(rc)
		f.put("base", data)
	}
	o := fast()
	o.Counts = new(Counts)
	got, err := pushImage(t.Context(), s, f.ref("a:1"), d, b, o)
	if err != nil || got.NoImage != nil {
		t.Fatal(got, err)
	}
	i := indexOf(t, f, "a", "1")
	if digest.FromBytes(f.manifests["a"]["1"].data) != got.Index || i.Manifests[0].Digest != got.Image || i.Manifests[1].Digest != d.Digest {
		t.Errorf("it gave %+v, and the index lists %+v", got, i.Manifests)
	}
	if n := f.count("PUT /v2/a/blobs/"); n != 7 { // config, index, CRIU's images, two segments; the other layer, the image's config
		t.Errorf("%d blobs were sent", n)
	}
	if o.Counts.There() != b.Layers()[0].Size {
		t.Errorf("%d bytes were there", o.Counts.There())
	}
	order := strings.Join(f.log, "\n")
	at := -1
	for _, m := range []string{d.Digest.String(), got.Image.String(), got.Index.String(), "1 "} {
		next := strings.Index(order, "PUT /v2/a/manifests/"+m)
		if next < at || next < 0 {
			t.Errorf("%s comes too early:\n%s", m, order)
		}
		at = next
	}
	if !strings.HasPrefix(f.log[len(f.log)-1], "PUT /v2/a/manifests/1 ") {
		t.Errorf("last comes %s", f.log[len(f.log)-1])
	}
	f.forget()
	if again, err := pushImage(t.Context(), s, f.ref("a:1"), d, b, fast()); err != nil || again != got || f.count("POST") != 0 {
		t.Errorf("again: %+v, %v, and %d uploads", again, err, f.count("POST"))
	}

	pulled(t, f, "a:1", d)
	pulled(t, f, "a@"+d.Digest.String(), d)
	t.Run("copied by a program of OCI 1.0", func(t *testing.T) {
		i := i
		i.Manifests = slices.Clone(i.Manifests)
		i.Manifests[1].ArtifactType = ""
		data, err := json.Marshal(i)
		if err != nil {
			t.Fatal(err)
		}
		f.seed("a", "copied", ocispec.MediaTypeImageIndex, data)
		pulled(t, f, "a:copied", d)
	})
	t.Run("digest of the index", func(t *testing.T) {
		dst := storetest.Open(t)
		p, err := NewPuller(t.Context(), dst, f.ref("a@"+got.Index.String()), fast())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		index, entries := p.Index()
		if index.Digest != got.Index || len(entries) != 2 || p.Descriptor().Digest != d.Digest || p.Name() != f.ref("a@"+d.Digest.String()) {
			t.Errorf("%s is %+v in %+v with %+v", p.Name(), p.Descriptor(), index, entries)
		}
		if err := p.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if found, err := dst.Resolve(t.Context(), f.ref("a@"+d.Digest.String())); err != nil || found.Digest != d.Digest {
			t.Errorf("the store has %+v, %v", found, err)
		}
	})
}

// TestPushNoImage has base images that are not to be had: the snapshot is pushed by itself, and it says why.
func TestPushNoImage(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b *Base) *Base{
		"nowhere": func(*Base) *Base { return nil },
		"a layer is gone": func(b *Base) *Base {
			b.Open = func(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
				return nil, fmt.Errorf("gone: %w", errdefs.ErrNotFound)
			}
			return b
		},
		"a layer ends early": func(b *Base) *Base {
			open := b.Open
			b.Open = func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
				rc, err := open(ctx, d)
				return io.NopCloser(io.MultiReader(io.LimitReader(rc, 9000), failingReader{})), err
			}
			return b
		},
		"a layer is another": func(b *Base) *Base {
			b.Open = func(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(make([]byte, d.Size))), nil
			}
			return b
		},
		"other layers": func(*Base) *Base { return testBase("", 3) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			s, d, b := images(t, f, "a:1")
			got, err := pushImage(t.Context(), s, f.ref("a:1"), d, change(b), fast())
			if err != nil || got.NoImage == nil || got.Index != "" || got.Image != "" {
				t.Fatalf("%+v, %v", got, err)
			}
			if m := f.manifests["a"]["1"]; m.mediaType != ocispec.MediaTypeImageManifest {
				t.Errorf("the name stands for %s", m.mediaType)
			}
			pulled(t, f, "a:1", d)
			// What another host has made of it stays.
			_, _, b = images(t, f, "a:1")
			before, err := pushImage(t.Context(), s, f.ref("a:1"), d, b, fast())
			if err != nil || before.NoImage != nil {
				t.Fatal(before, err)
			}
			_, _, b = images(t, f, "a:1")
			delete(f.blobs["a"], b.Layers()[0].Digest) // else none is read
			if after, err := pushImage(t.Context(), s, f.ref("a:1"), d, change(b), fast()); err != nil || after != before {
				t.Errorf("%+v became %+v, %v", before, after, err)
			}
		})
	}
}

// TestPushImageSlow has a base image that comes from a registry which stalls for longer than a registry may that is pushed to.
func TestPushImageSlow(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s, d, b := images(t, f, "a:1")
	open := b.Open
	b.Open = func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		time.Sleep(quick.idle * 3 / 2)
		rc, err := open(ctx, d)
		return io.NopCloser(&sleepingReader{rc, quick.idle * 3 / 2}), err
	}
	o := fast()
	o.Counts = new(Counts)
	if got, err := pushImage(t.Context(), s, f.ref("a:1"), d, b, o); err != nil || got.NoImage != nil || o.Counts.Repeated() != 0 {
		t.Errorf("%+v, %v, %d repeated", got, err, o.Counts.Repeated())
	}
}

// sleepingReader sleeps once.
type sleepingReader struct {
	io.Reader
	time time.Duration
}

func (r *sleepingReader) Read(p []byte) (int, error) {
	time.Sleep(r.time)
	r.time = 0
	return r.Reader.Read(p)
}

// failingReader cannot be read.
type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("the disk is broken") }

// TestPushImageFails has the registry refuse a part: nothing has the name.
func TestPushImageFails(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]func(*http.Request) bool{
		"manifest": method("PUT", "/manifests/sha256:"),
		"layer":    method("PUT", "/blobs/"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.fault = func(w http.ResponseWriter, r *http.Request) bool {
				if match(r) {
					status(http.StatusForbidden)(w, r)
				}
				return match(r)
			}
			s, d, b := images(t, f, "a:1")
			if got, err := pushImage(t.Context(), s, f.ref("a:1"), d, b, fast()); !errdefs.IsPermissionDenied(err) || got.Index != "" {
				t.Errorf("%+v, %v", got, err)
			}
			if len(f.manifests["a"]) != 0 {
				t.Errorf("there is %v", f.manifests["a"])
			}
		})
	}
}

// TestPushImageGivenUp closes a push that still looks for the base image.
func TestPushImageGivenUp(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s, d, _ := images(t, f, "a:1")
	p, err := NewPusher(t.Context(), s, f.ref("a:1"), fast())
	if err != nil {
		t.Fatal(err)
	}
	p.WithImage(func(ctx context.Context) (*Base, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Finish(ctx, d); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	p.Close()
	if len(f.manifests["a"]) != 0 {
		t.Errorf("there is %v", f.manifests["a"])
	}
}

// TestPullHostileIndex has indexes that lie about the snapshot.
func TestPullHostileIndex(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "h:1", withSegments(1))
	entry := ocispec.Descriptor{MediaType: d.MediaType, ArtifactType: image.ArtifactType, Digest: d.Digest, Size: d.Size}
	with := func(change func(*ocispec.Descriptor)) ocispec.Descriptor {
		e := entry
		change(&e)
		return e
	}
	other := ocispec.Descriptor{MediaType: d.MediaType, Digest: digest.FromString("image"), Size: 9}
	many := make([]ocispec.Descriptor, store.MaxEntries+1)
	for n := range many {
		many[n] = other
	}
	for name, test := range map[string]struct {
		entries []ocispec.Descriptor
		words   string
	}{
		"an image alone":            {[]ocispec.Descriptor{other}, "is not a cryo snapshot but an image for several platforms"},
		"nothing":                   {nil, "is not a cryo snapshot"},
		"two":                       {[]ocispec.Descriptor{entry, with(func(e *ocispec.Descriptor) { e.Digest = other.Digest })}, "2 of its entries are snapshots"},
		"twice":                     {[]ocispec.Descriptor{entry, entry}, "2 of its entries are snapshots"},
		"another size":              {[]ocispec.Descriptor{other, with(func(e *ocispec.Descriptor) { e.Size++ })}, "it lists"},
		"no size":                   {[]ocispec.Descriptor{other, with(func(e *ocispec.Descriptor) { e.Size = -1 })}, "out of range"},
		"too large":                 {[]ocispec.Descriptor{with(func(e *ocispec.Descriptor) { e.Size = store.MaxManifest + 1 })}, "at most"},
		"an index":                  {[]ocispec.Descriptor{with(func(e *ocispec.Descriptor) { e.MediaType = ocispec.MediaTypeImageIndex })}, "the media type of its snapshot"},
		"missing":                   {[]ocispec.Descriptor{with(func(e *ocispec.Descriptor) { e.Digest = other.Digest })}, "the registry has no manifest"},
		"a path":                    {[]ocispec.Descriptor{with(func(e *ocispec.Descriptor) { e.Digest = "sha256:../../etc" })}, "digest"},
		"another path":              {[]ocispec.Descriptor{entry, {Digest: "sha256:../../etc"}}, "digest"},
		"many":                      {append(many, entry), "entries, at most"},
		"something of another kind": {[]ocispec.Descriptor{with(func(e *ocispec.Descriptor) { e.ArtifactType = "application/vnd.cryo.snapshot.v9" })}, "is not a cryo snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: test.entries})
			if err != nil {
				t.Fatal(err)
			}
			f.seed("h", "bad", ocispec.MediaTypeImageIndex, data)
			s := storetest.Open(t)
			_, err = Pull(t.Context(), s, f.ref("h:bad"), fast())
			if !errdefs.IsDataLoss(err) || failure.Hint(err) == "" || len(err.Error()) > 1000 || !strings.Contains(err.Error(), test.words) {
				t.Error(err)
			}
			if n := storetest.Count(t, s); n != 0 {
				t.Errorf("%d blobs are there", n)
			}
		})
	}
	t.Run("what it lists is another", func(t *testing.T) {
		data, err := json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{entry}})
		if err != nil {
			t.Fatal(err)
		}
		f.seed("h", "bad", ocispec.MediaTypeImageIndex, data)
		f.manifests["h"][d.Digest.String()] = stored{d.MediaType, []byte(`{"schemaVersion":2}`)}
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("h:bad"), fast()); !errdefs.IsDataLoss(err) {
			t.Error(err)
		}
	})
}
