package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

func describe(data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(data), Size: int64(len(data))}
}

func TestBlobs(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	data := storetest.Bytes(1, 3<<20)
	w, err := s.Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if ok, _ := s.Exists(ctx, describe(data)); ok {
		t.Error("blob is there before it was committed")
	}
	d, err := w.Commit(ctx, "application/octet-stream")
	if err != nil || d.Digest != digest.FromBytes(data) || d.Size != int64(len(data)) {
		t.Fatalf("Commit: %+v, %v", d, err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("Close after Commit: %v", err)
	}
	rc, err := s.Fetch(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if _, ok := rc.(io.ReaderAt); !ok {
		t.Error("reader is no io.ReaderAt")
	}
	if got, err := io.ReadAll(rc); err != nil || !bytes.Equal(got, data) {
		t.Errorf("content differs (%v)", err)
	}
	// The same again is kept and leaves nothing behind.
	if err := s.Push(ctx, d, strings.NewReader("not read")); err != nil {
		t.Errorf("Push of what is there: %v", err)
	}
	w, _ = s.Create(ctx)
	w.Write(data)
	if _, err := w.Commit(ctx, ""); err != nil {
		t.Errorf("Commit of what is there: %v", err)
	}
	w, _ = s.Create(ctx)
	w.Write(data[:10])
	w.Close()
	if e, _ := os.ReadDir(filepath.Join(s.Root(), "ingest")); len(e) != 0 {
		t.Errorf("left in ingest: %v", e)
	}
	if err := storetest.CheckBlobs(s); err != nil {
		t.Error(err)
	}
}

func TestPushVerifies(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	good := storetest.Bytes(1, 1000)
	flipped := bytes.Clone(good)
	flipped[500] ^= 1
	for name, data := range map[string][]byte{"flipped": flipped, "short": good[:999], "long": append(bytes.Clone(good), 0), "empty": nil} {
		err := s.Push(ctx, describe(good), bytes.NewReader(data))
		if !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v, want data loss", name, err)
		}
	}
	for name, d := range map[string]ocispec.Descriptor{
		"path":   {Digest: "sha256:../../../../etc/passwd"},
		"upper":  {Digest: digest.Digest("sha256:" + strings.Repeat("A", 64))},
		"sha512": {Digest: digest.Digest("sha512:" + strings.Repeat("a", 128)), Size: 1000},
		"size":   {Digest: digest.FromBytes(good), Size: -1},
		"huge":   {Digest: digest.FromBytes(good), Size: store.MaxBlob + 1},
		"none":   {},
	} {
		if err := s.Push(ctx, d, bytes.NewReader(good)); !errdefs.IsDataLoss(err) {
			t.Errorf("Push %s: %v", name, err)
		}
		if _, err := s.Fetch(ctx, d); !errdefs.IsDataLoss(err) {
			t.Errorf("Fetch %s: %v", name, err)
		}
	}
	if n := storetest.Count(t, s); n != 0 {
		t.Errorf("%d blobs are there", n)
	}
	if _, err := s.Fetch(ctx, describe(good)); !errdefs.IsNotFound(err) {
		t.Errorf("Fetch of what is not there: %v", err)
	}
}

func TestFetchFindsTruncation(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	data := storetest.Bytes(1, 1000)
	if err := s.Push(ctx, describe(data), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(s.Layout(), "blobs", "sha256", digest.FromBytes(data).Encoded()), 999); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fetch(ctx, describe(data)); !errdefs.IsDataLoss(err) {
		t.Errorf("Fetch: %v", err)
	}
	// Storing it again mends it.
	if err := s.Push(ctx, describe(data), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := storetest.CheckBlobs(s); err != nil {
		t.Error(err)
	}
}

func TestTags(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	a := storetest.MustPut(t, s, "app", storetest.Spec{Seed: 1, Segments: []uint64{1, 2, 3}})
	b := storetest.MustPut(t, s, "registry.example:5000/team/app:v2", storetest.Spec{Seed: 2, Segments: []uint64{1, 2, 4}})
	for ref, want := range map[string]ocispec.Descriptor{
		"app":                                a,
		"app:latest":                         a,
		"docker.io/library/app":              a,
		"registry.example:5000/team/app:v2":  b,
		b.Digest.String():                    b,
		"whatever@" + a.Digest.String():      a,
		"docker.io/library/app:latest":       a,
		"index.docker.io/library/app:latest": a,
		"app:ignored@" + a.Digest.String():   a,
		"registry.example:5000/team/app:v2@" + b.Digest.String(): b,
	} {
		got, err := s.Resolve(ctx, ref)
		if err != nil || got.Digest != want.Digest || got.ArtifactType != want.ArtifactType || got.Size != want.Size {
			t.Errorf("Resolve(%s) = %v, %v", ref, got, err)
		}
	}
	for _, ref := range []string{"nope", "app:v2", "sha256:" + strings.Repeat("0", 64)} {
		if _, err := s.Resolve(ctx, ref); !errdefs.IsNotFound(err) {
			t.Errorf("Resolve(%s): %v", ref, err)
		}
	}
	for _, ref := range []string{"", "UPPER", "a b", "a//b", "a:b:c", "sha256:abc", strings.Repeat("a", 1000), "a\x00b", "../../etc"} {
		_, err := s.Resolve(ctx, ref)
		if ref == "sha256:abc" { // a name with a tag
			if !errdefs.IsNotFound(err) {
				t.Errorf("Resolve(%q): %v", ref, err)
			}
			continue
		}
		var hint interface{ Hint() string }
		if !errdefs.IsInvalidArgument(err) || !errors.As(err, &hint) {
			t.Errorf("Resolve(%q): %v", ref, err)
		}
	}
	// A tag moves; what is incomplete gets none.
	if err := s.Tag(ctx, b, "app"); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Resolve(ctx, "app"); got.Digest != b.Digest {
		t.Error("tag did not move")
	}
	if err := s.Tag(ctx, b, a.Digest.String()); !errdefs.IsInvalidArgument(err) {
		t.Errorf("tag with a digest: %v", err)
	}
	if err := s.Tag(ctx, b, "x@"+a.Digest.String()); !errdefs.IsInvalidArgument(err) {
		t.Errorf("tag with the digest of another: %v", err)
	}
	tags, err := s.Tags(ctx)
	if err != nil || len(tags) != 2 || tags[0].Ref != "docker.io/library/app:latest" || tags[1].Descriptor.Digest != b.Digest {
		t.Errorf("Tags: %v, %v", tags, err)
	}
}

// TestWalk visits each blob of a snapshot once, after what it needs, also where manifests share layers.
func TestWalk(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	d := storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1, Segments: []uint64{1, 2, 2}})
	seen := map[string]bool{}
	err := s.Walk(ctx, d, func(d ocispec.Descriptor, path string, needs []ocispec.Descriptor) error {
		if seen[path] {
			t.Errorf("%s: a second time", d.Digest)
		}
		seen[path] = true
		for _, n := range needs {
			if !seen[filepath.Join(filepath.Dir(path), n.Digest.Encoded())] {
				t.Errorf("%s before %s, which it needs", d.Digest, n.Digest)
			}
		}
		i, err := os.Stat(path)
		if err == nil && i.Size() != d.Size {
			t.Errorf("%s: %d bytes, want %d", path, i.Size(), d.Size)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := storetest.Count(t, s); len(seen) != n {
		t.Errorf("%d blobs visited of %d", len(seen), n)
	}
	stop := errors.New("stop")
	if err := s.Walk(ctx, d, func(ocispec.Descriptor, string, []ocispec.Descriptor) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v, want the visitor's error", err)
	}
}

// TestChanged: a name that is added, moved or removed is a change, and no other call is.
func TestChanged(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	changes := 0
	s.Changed = func(context.Context) { changes++ }
	want := func(what string, more int) {
		t.Helper()
		if changes != more {
			t.Errorf("%s: %d changes, want %d", what, changes, more)
		}
		changes = 0
	}
	d := storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	want("added", 1)
	other := storetest.MustPut(t, s, "b:1", storetest.Spec{Seed: 2, Segments: []uint64{1}})
	want("another added", 1)
	if err := s.Tag(ctx, other, "a:1"); err != nil {
		t.Fatal(err)
	}
	want("moved", 1)
	if _, err := s.Resolve(ctx, "a:1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Tag(ctx, d, "a@"+other.Digest.String()); err == nil {
		t.Error("a digest names another manifest")
	}
	want("read and refused", 0)
	if _, err := s.Remove(ctx, "a:1"); err != nil {
		t.Fatal(err)
	}
	want("removed", 1)
}

func TestTagNeedsAllBlobs(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	d := storetest.MustPut(t, s, "app", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	lost := digest.FromBytes(storetest.Bytes(1, 64<<10))
	if err := os.Remove(filepath.Join(s.Layout(), "blobs", "sha256", lost.Encoded())); err != nil {
		t.Fatal(err)
	}
	err := s.Tag(ctx, d, "other")
	if !errors.Is(err, store.ErrMissing) || !strings.Contains(err.Error(), lost.String()) || !errdefs.IsNotFound(err) {
		t.Errorf("Tag: %v", err)
	}
}

func TestOpenRefusesWhatIsNoStore(t *testing.T) {
	for name, layout := range map[string]string{"version": `{"imageLayoutVersion":"9"}`, "json": `{`, "huge": strings.Repeat(" ", 1<<20)} {
		root := t.TempDir()
		os.Mkdir(filepath.Join(root, "store"), 0o700)
		os.WriteFile(filepath.Join(root, "store", "oci-layout"), []byte(layout), 0o600)
		if _, err := store.Open(root); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := storetest.Open(t)
	index := filepath.Join(s.Layout(), "index.json") // removed below, with all from which it could be made again
	if err := errors.Join(os.Remove(index), os.Remove(filepath.Join(s.Root(), "index.backup.json")), os.RemoveAll(filepath.Join(s.Layout(), "blobs"))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tags(t.Context()); err == nil {
		t.Errorf("damaged index: %v", err)
	}
	if _, err := s.Remove(t.Context(), "app"); err == nil || errdefs.IsNotFound(err) {
		t.Errorf("remove with damaged index: %v", err)
	}
}

func TestModes(t *testing.T) {
	s := storetest.Open(t)
	storetest.MustPut(t, s, "app", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	filepath.WalkDir(s.Root(), func(path string, e os.DirEntry, _ error) error {
		if path == s.Root() {
			return nil // made by the test
		}
		i, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]os.FileMode{true: 0o700, false: 0o600}[e.IsDir()]; i.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, i.Mode())
		}
		return nil
	})
}

func TestCancelledLock(t *testing.T) {
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, "app", storetest.Spec{Seed: 1})
	unlock := holdIndex(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Tag(ctx, d, "other"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Tag: %v", err)
	}
	// Readers need no lock.
	if _, err := s.Resolve(t.Context(), "app"); err != nil {
		t.Error(err)
	}
	unlock()
	if err := s.Tag(t.Context(), d, "other"); err != nil {
		t.Error(err)
	}
}

// TestAbortedIndex has what a killed process left of the index go with the next change of it.
func TestAbortedIndex(t *testing.T) {
	s := storetest.Open(t)
	left := filepath.Join(s.Layout(), ".index.json-1234")
	if err := os.WriteFile(left, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	storetest.MustPut(t, s, "app", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestNamesRegistry(t *testing.T) {
	for ref, want := range map[string]bool{
		"app": false, "app:1": false, "team/app:1": false, "library/app": false, "sha256:" + strings.Repeat("a", 64): false, "a//b": false,
		"docker.io/team/app:1": true, "index.docker.io/app": true, "localhost/app": true, "registry.example/app": true, "host:5000/app:1": true,
	} {
		if store.NamesRegistry(ref) != want {
			t.Errorf("%s: %v", ref, !want)
		}
	}
}

// TestInvalidRefAsGiven: the error has the name as it was given, without the owner that Docker's names get.
func TestInvalidRefAsGiven(t *testing.T) {
	for ref, want := range map[string]string{"Bad Ref": "name Bad Ref must", "docker.io/Bad:1": "name Bad must", "library/Bad": "name library/Bad must", "a.example/team/Bad": "name team/Bad must"} {
		if _, err := store.Normalize(ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", ref, err, want)
		}
	}
}
