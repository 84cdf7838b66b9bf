package registry

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

func TestRoundTrip(t *testing.T) {
	src := storetest.Open(t)
	d := storetest.MustPut(t, src, "app:v1", storetest.Spec{Seed: 1, Segments: []uint64{1, 2, 2}})
	d2 := storetest.MustPut(t, src, "app:v2", storetest.Spec{Seed: 2, Segments: []uint64{1, 3}})
	dir := t.TempDir()
	for location, want := range map[string]string{
		"oci:" + dir + "/layout":                        "docker.io/library/app:v1",
		"oci-archive:" + dir + "/a.tar":                 "docker.io/library/app:v1",
		"oci-archive:" + dir + "/my.Snap.tar:v9":        "docker.io/library/my-snap:v9",
		"oci:" + dir + "/l2:registry.example:5000/x:v3": "registry.example:5000/x:v3",
	} {
		if err := Export(t.Context(), src, d, "app:v1", location); err != nil {
			t.Errorf("export %s: %v", location, err)
			continue
		}
		dst := storetest.Open(t)
		ref, got, err := Import(t.Context(), dst, location, nil, false)
		if err != nil || ref != want || got.Digest != d.Digest {
			t.Errorf("import %s: %s, %v, %v", location, ref, got, err)
			continue
		}
		if r, err := dst.Resolve(t.Context(), ref); err != nil || r.Digest != d.Digest || r.ArtifactType != d.ArtifactType {
			t.Errorf("%s: %v, %v", location, r, err)
		}
		if err := storetest.Check(t.Context(), dst); err != nil {
			t.Error(err)
		}
	}
	// A layout takes several snapshots, and the same again.
	both := "oci:" + dir + "/layout"
	for range 2 {
		if err := Export(t.Context(), src, d2, "app:v2", both); err != nil {
			t.Fatal(err)
		}
	}
	dst := storetest.Open(t)
	if _, _, err := Import(t.Context(), dst, both, nil, false); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "holds 2 manifests") {
		t.Errorf("two snapshots, no tag: %v", err)
	}
	for tag, want := range map[string]string{"app:v2": d2.Digest.String(), "docker.io/library/app:v1": d.Digest.String(), d.Digest.String(): d.Digest.String()} {
		if _, got, err := Import(t.Context(), dst, both+":"+tag, nil, false); err != nil || got.Digest.String() != want {
			t.Errorf("%s: %v, %v", tag, got, err)
		}
	}
	if _, _, err := Import(t.Context(), dst, both+":nope", nil, false); !errdefs.IsNotFound(err) || !strings.Contains(failure.Hint(err), "app:v2") {
		t.Errorf("unknown tag: %v", err)
	}
}

func TestArchiveIsDeterministic(t *testing.T) {
	dir := t.TempDir()
	var files [2][]byte
	for i := range files {
		src := storetest.Open(t)
		d := storetest.MustPut(t, src, "app:v1", storetest.Spec{Seed: 1, Segments: []uint64{1, 2}})
		path := fmt.Sprintf("%s/%d.tar", dir, i)
		if err := Export(t.Context(), src, d, "app:v1", "oci-archive:"+path); err != nil {
			t.Fatal(err)
		}
		files[i], _ = os.ReadFile(path)
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("archives differ")
	}
	i, err := os.Stat(dir + "/0.tar")
	if err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", i.Mode(), err)
	}
}

// The store's own layout can be imported from as it stands.
func TestImportFromStore(t *testing.T) {
	src, dst := storetest.Open(t), storetest.Open(t)
	d := storetest.MustPut(t, src, "app:v1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	ref, got, err := Import(t.Context(), dst, "oci:"+src.Layout(), nil, false)
	if err != nil || ref != "docker.io/library/app:v1" || got.Digest != d.Digest {
		t.Errorf("%s, %v, %v", ref, got, err)
	}
}

func TestExportDamaged(t *testing.T) {
	src := storetest.Open(t)
	d := storetest.MustPut(t, src, "app", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	blobs := filepath.Join(src.Layout(), "blobs", "sha256")
	entries, _ := os.ReadDir(blobs)
	for _, e := range entries {
		path := filepath.Join(blobs, e.Name())
		good, _ := os.ReadFile(path)
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		os.WriteFile(path, bad, 0o600)
		dir := t.TempDir()
		for _, location := range []string{"oci:" + dir + "/d", "oci-archive:" + dir + "/a.tar"} {
			if err := Export(t.Context(), src, d, "app", location); !errdefs.IsDataLoss(err) {
				t.Errorf("%s: %v", location, err)
			}
		}
		left, _ := filepath.Glob(dir + "/*.tar*")
		hidden, _ := filepath.Glob(dir + "/.*")
		if len(left)+len(hidden) != 0 {
			t.Errorf("left: %v %v", left, hidden)
		}
		os.WriteFile(path, good, 0o600)
	}
}

func TestLocations(t *testing.T) {
	for s, want := range map[string]location{
		"oci:/a/b":                 {path: "/a/b"},
		"oci:b:t":                  {path: "b", tag: "t"},
		"oci-archive:x.tar:a/b:t":  {tar: true, path: "x.tar", tag: "a/b:t"},
		"oci-archive:/x/y.tar":     {tar: true, path: "/x/y.tar"},
		"oci:d:h:5000/a@sha256:00": {path: "d", tag: "h:5000/a@sha256:00"},
	} {
		got, err := parseLocation(s)
		want.text = s
		if err != nil || got != want || !IsLocation(s) {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "oci:", "oci::t", "oci-archive:", "docker:x", "oci:a:", "oci:a\x00b", "/a/b"} {
		if _, err := parseLocation(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", s, err)
		}
	}
	dst := storetest.Open(t)
	for _, s := range []string{"oci:/nonexistent", "oci-archive:/nonexistent", "oci:" + t.TempDir()} {
		if _, _, err := Import(t.Context(), dst, s, nil, false); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, _, err := Import(t.Context(), dst, "oci-archive:"+t.TempDir(), nil, false); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a directory as archive: %v", err)
	}
}

// exported is an archive with one small snapshot.
func exported(t testing.TB) []byte {
	t.Helper()
	src := storetest.Open(t)
	d := storetest.MustPut(t, src, "app:v1", storetest.Spec{Seed: 1, Segments: []uint64{1}, Size: 3000})
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := Export(t.Context(), src, d, "app:v1", "oci-archive:"+path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// importBytes imports an archive and checks that a failure leaves nothing.
func importBytes(t testing.TB, dst *store.Store, data []byte) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := Import(t.Context(), dst, "oci-archive:"+path, nil, false)
	if err != nil {
		var hint interface{ Hint() string }
		if !errors.As(err, &hint) {
			t.Errorf("no hint: %v", err)
		}
		if n := storetest.Count(t, dst); n != 0 {
			t.Errorf("%d blobs are left after %v", n, err)
		}
		if tags, _ := dst.Tags(t.Context()); len(tags) != 0 {
			t.Errorf("%v is tagged after %v", tags, err)
		}
	}
	return err
}

func TestTruncatedAndFlipped(t *testing.T) {
	good := exported(t)
	// Two blocks of zeros end an archive and the last file is padded to a block: all of it is there without them.
	end := len(good) - 1024 - 511
	for n := 0; n < end; n += 97 {
		if err := importBytes(t, storetest.Open(t), good[:n]); !errdefs.IsDataLoss(err) && !errdefs.IsNotFound(err) {
			t.Fatalf("cut at %d of %d: %v", n, len(good), err)
		}
	}
	r := tar.NewReader(bytes.NewReader(good))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(h.Name, "blobs/") || h.Size == 0 {
			continue
		}
		data, _ := io.ReadAll(r)
		at := bytes.Index(good, data)
		bad := bytes.Clone(good)
		bad[at+len(data)/2] ^= 4
		if err := importBytes(t, storetest.Open(t), bad); !errdefs.IsDataLoss(err) {
			t.Errorf("flipped in %s: %v", h.Name, err)
		}
	}
}

// rebuild copies an archive; change may drop (nil header) or change entries, extra are added.
func rebuild(t testing.TB, data []byte, change func(h *tar.Header, b []byte) (*tar.Header, []byte), extra ...*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r)
		if change != nil {
			h, b = change(h, b)
		}
		if h == nil {
			continue
		}
		h.Size = int64(len(b))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		w.Write(b)
	}
	for _, h := range extra {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		w.Write(make([]byte, h.Size))
	}
	w.Close()
	return out.Bytes()
}

func TestHostileArchives(t *testing.T) {
	good := exported(t)
	drop := func(prefix string) func(h *tar.Header, b []byte) (*tar.Header, []byte) {
		return func(h *tar.Header, b []byte) (*tar.Header, []byte) {
			if strings.HasPrefix(h.Name, prefix) && h.Typeflag == tar.TypeReg {
				return nil, nil
			}
			return h, b
		}
	}
	index := func(fn func(i *ocispec.Index)) func(h *tar.Header, b []byte) (*tar.Header, []byte) {
		return func(h *tar.Header, b []byte) (*tar.Header, []byte) {
			if h.Name == "index.json" {
				var i ocispec.Index
				json.Unmarshal(b, &i)
				fn(&i)
				b, _ = json.Marshal(i)
			}
			return h, b
		}
	}
	reg := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 3} }
	for name, data := range map[string][]byte{
		"parent":        rebuild(t, good, nil, reg("../x")),
		"inner parent":  rebuild(t, good, nil, reg("blobs/../../x")),
		"absolute":      rebuild(t, good, nil, reg("/etc/cron.d/x")),
		"symlink":       rebuild(t, good, nil, &tar.Header{Name: "blobs/x", Linkname: "/etc", Typeflag: tar.TypeSymlink}),
		"hard link":     rebuild(t, good, nil, &tar.Header{Name: "blobs/x", Linkname: "/etc/shadow", Typeflag: tar.TypeLink}),
		"device":        rebuild(t, good, nil, &tar.Header{Name: "blobs/x", Typeflag: tar.TypeBlock}),
		"twice":         rebuild(t, good, nil, reg("index.json")),
		"no layout":     rebuild(t, good, drop("oci-layout")),
		"no index":      rebuild(t, good, drop("index.json")),
		"no blobs":      rebuild(t, good, drop("blobs/")),
		"bad index":     rebuild(t, good, index(func(i *ocispec.Index) { i.SchemaVersion = 1 })),
		"empty index":   rebuild(t, good, index(func(i *ocispec.Index) { i.Manifests = nil })),
		"digest a path": rebuild(t, good, index(func(i *ocispec.Index) { i.Manifests[0].Digest = "sha256:../../x" })),
		"wrong size":    rebuild(t, good, index(func(i *ocispec.Index) { i.Manifests[0].Size++ })),
		"not OCI":       rebuild(t, good, index(func(i *ocispec.Index) { i.Manifests[0].MediaType = "text/plain" })),
		"gzip":          append([]byte{0x1f, 0x8b, 8, 0}, good...),
		"text":          bytes.Repeat([]byte("hello "), 1000),
		"empty":         nil,
		"zeros":         make([]byte, 4096),
	} {
		t.Run(name, func(t *testing.T) {
			if err := importBytes(t, storetest.Open(t), data); err == nil {
				t.Error("imported")
			}
		})
	}
	// What other tools add is no harm.
	fine := rebuild(t, good, func(h *tar.Header, b []byte) (*tar.Header, []byte) { h.Name = "./" + h.Name; return h, b },
		reg("manifest.json"), reg("repositories"), &tar.Header{Name: "./", Typeflag: tar.TypeDir})
	if err := importBytes(t, storetest.Open(t), fine); err != nil {
		t.Error(err)
	}
}

func TestSymlinksInDirectory(t *testing.T) {
	src, dst := storetest.Open(t), storetest.Open(t)
	d := storetest.MustPut(t, src, "app", storetest.Spec{Seed: 1})
	dir := t.TempDir()
	if err := Export(t.Context(), src, d, "app", "oci:"+dir); err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "blobs", "sha256", d.Digest.Encoded())
	outside := filepath.Join(t.TempDir(), "x")
	data, _ := os.ReadFile(blob)
	os.WriteFile(outside, data, 0o600)
	os.Remove(blob)
	if err := os.Symlink(outside, blob); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Import(t.Context(), dst, "oci:"+dir, nil, false); err == nil {
		t.Error("followed a symbolic link out of the layout")
	}
}

// What Import does before it writes, in memory: scanning, the index, the choice, the manifest.
func FuzzImport(f *testing.F) {
	f.Add(exported(f))
	f.Add([]byte("hello"))
	f.Fuzz(func(t *testing.T, data []byte) {
		files, err := scanTar(t.Context(), location{}, bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		for name, s := range files {
			if !filepath.IsLocal(name) || s.off < 0 || s.size < 0 || s.off+s.size > int64(len(data)) {
				t.Errorf("accepted %q at %v", name, s)
			}
		}
		lay := &tarLayout{r: bytes.NewReader(data), close: func() error { return nil }, files: files}
		index, err := readIndex(location{}, lay)
		if err != nil {
			return
		}
		entry, err := choose(location{}, index)
		if err != nil {
			return
		}
		if got, err := store.ReadAll(t.Context(), fetcher{lay, location{}}, entry, store.MaxManifest); err == nil {
			_, _ = store.ParseSnapshot("x", entry, got)
		}
	})
}

func FuzzLocation(f *testing.F) {
	f.Add("oci:/a:b")
	f.Add("oci-archive:x.tar:h/y:z")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := parseLocation(s)
		if err != nil {
			return
		}
		for _, tag := range []string{l.tag, ""} {
			ref, err := l.name(ocispec.Descriptor{Annotations: map[string]string{ocispec.AnnotationRefName: tag}})
			if err != nil {
				continue
			}
			if again, err := store.Normalize(ref); err != nil || again != ref {
				t.Errorf("%q is named %q, %q, %v", s, ref, again, err)
			}
		}
	})
}
