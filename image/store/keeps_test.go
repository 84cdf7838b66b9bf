package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestFetchVerified: what others than root could have written since it came in is not taken for verified.
func TestFetchVerified(t *testing.T) {
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, "local:1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	blob := filepath.Join(s.Layout(), "blobs", "sha256", d.Digest.Encoded())
	data, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	want := func(how string, verified bool) {
		t.Helper()
		rc, err := s.Fetch(t.Context(), ocispec.Descriptor{MediaType: image.MediaTypeSegment, Digest: digest.FromBytes(data), Size: int64(len(data))})
		if err != nil {
			t.Fatal(err)
		}
		defer rc.Close()
		if _, ok := rc.(format.Verified); ok != verified {
			t.Errorf("%s: verified %v, want %v", how, ok, verified)
		}
	}
	root := os.Geteuid() == 0
	want("as it is", root)
	for _, path := range []string{blob, filepath.Dir(blob), s.Layout(), s.Root()} {
		i, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, i.Mode().Perm()|0o020); err != nil {
			t.Fatal(err)
		}
		want(path+" can be written by a group", false)
		if err := os.Chmod(path, i.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
		if !root {
			continue
		}
		if err := os.Chown(path, 1, 1); err != nil {
			t.Fatal(err)
		}
		want(path+" is another's", false)
		if err := os.Chown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	want("as it was", root)
}
