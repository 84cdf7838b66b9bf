package registry

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestImportIndex imports from a layout that has a snapshot as registries do, with an image beside it: a copy of one by skopeo --all.
func TestImportIndex(t *testing.T) {
	src, dir := storetest.Open(t), t.TempDir()
	d := storetest.MustPut(t, src, "example.com/app:v1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	if err := Export(t.Context(), src, d, "example.com/app:v1", "oci:"+dir); err != nil {
		t.Fatal(err)
	}
	write := func(path string, v any) ocispec.Descriptor {
		t.Helper()
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		sum := digest.FromBytes(data)
		if path == "" {
			path = "blobs/sha256/" + sum.Encoded()
		}
		if err := os.WriteFile(filepath.Join(dir, path), data, 0o600); err != nil {
			t.Fatal(err)
		}
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: sum, Size: int64(len(data))}
	}
	snapshot := ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size, ArtifactType: image.ArtifactType}
	img := ocispec.Descriptor{MediaType: d.MediaType, Digest: digest.FromString("an image, which need not be there"), Size: 9}
	for name, test := range map[string]struct {
		entries []ocispec.Descriptor
		fails   bool
	}{
		"image and snapshot": {[]ocispec.Descriptor{img, snapshot}, false},
		"image":              {[]ocispec.Descriptor{img}, true},
		"two snapshots":      {[]ocispec.Descriptor{snapshot, snapshot}, true},
	} {
		t.Run(name, func(t *testing.T) {
			top := write("", ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: test.entries})
			top.Annotations = map[string]string{ocispec.AnnotationRefName: "warm"}
			index := store.NewIndex(top)
			write(ocispec.ImageIndexFile, index)
			dst := storetest.Open(t)
			ref, got, err := Import(t.Context(), dst, "oci:"+dir+":warm", nil, false)
			switch {
			case test.fails && !errdefs.IsDataLoss(err):
				t.Errorf("%s, %v", ref, err)
			case !test.fails && (err != nil || got.Digest != d.Digest):
				t.Errorf("%s, %v, %v", ref, got, err)
			case !test.fails:
				if err := storetest.Check(t.Context(), dst); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
