package store_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/storetest"
)

// TestExpand finds a snapshot by the beginning of its digest, unless that is a name in the store.
func TestExpand(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	d := storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1, Segments: []uint64{1}}).Digest
	if err := s.Tag(ctx, storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1, Segments: []uint64{1}}), "again"); err != nil {
		t.Fatal(err)
	}
	full, begins := d.String(), d.Encoded()[:12]
	for ref, want := range map[string]string{
		begins: full, "sha256:" + begins: full, full: full, d.Encoded()[:4]: full, d.Encoded()[:3]: d.Encoded()[:3],
		"a": "a", "registry.example/a:1": "registry.example/a:1", "oci:" + begins: "oci:" + begins,
	} {
		if got, err := s.Expand(ctx, ref); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", ref, got, err, want)
		}
	}
	storetest.MustPut(t, s, begins, storetest.Spec{Seed: 2, Segments: []uint64{1}})
	if got, err := s.Expand(ctx, begins); err != nil || got != begins {
		t.Errorf("a name that looks like a digest is %s, %v", got, err)
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}}
	for _, end := range []string{"0", "1"} {
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.Digest("sha256:abcd" + strings.Repeat(end, 60)), Size: 1}
		d.Annotations = map[string]string{ocispec.AnnotationRefName: "registry.example/" + end + ":1"}
		index.Manifests = append(index.Manifests, d)
	}
	data, err := json.Marshal(index)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.Layout(), ocispec.ImageIndexFile), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Expand(ctx, "abcd"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("two digests: %v", err)
	}
	if got, err := s.Expand(ctx, "sha256:abcd1"); err != nil || got != index.Manifests[1].Digest.String() {
		t.Errorf("one of two digests: %s, %v", got, err)
	}
}
