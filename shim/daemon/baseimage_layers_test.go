package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
)

// fakeContent is what a content store or a registry has.
type fakeContent map[digest.Digest][]byte

var _ image.Fetcher = fakeContent{}

// Fetch implements [image.Fetcher].
func (c fakeContent) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	data, ok := c[d.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", d.Digest, errdefs.ErrNotFound)
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (c fakeContent) put(t *testing.T, mediaType string, v any) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	c[d.Digest] = data
	return d
}

// image puts an image of one layer.
func (c fakeContent) image(t *testing.T, layer string, platform *ocispec.Platform) ocispec.Descriptor {
	t.Helper()
	config := c.put(t, ocispec.MediaTypeImageConfig, ocispec.Image{RootFS: ocispec.RootFS{DiffIDs: []digest.Digest{digest.FromString(layer)}}})
	d := c.put(t, ocispec.MediaTypeImageManifest, ocispec.Manifest{Config: config, Layers: []ocispec.Descriptor{
		{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("compressed " + layer), Size: 7},
	}})
	d.Platform = platform
	return d
}

// TestFind finds the image of the snapshot's container in an index of several, by its layers.
func TestFind(t *testing.T) {
	here := &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	c := make(fakeContent)
	index := c.put(t, ocispec.MediaTypeImageIndex, ocispec.Index{Manifests: []ocispec.Descriptor{
		{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("not here"), Size: 5, Platform: here},
		c.image(t, "arm", &ocispec.Platform{OS: "linux", Architecture: "arm64"}),
		c.image(t, "other", here), c.image(t, "ours", here), c.image(t, "no platform", nil),
	}})
	alone := c.image(t, "ours", nil)
	for _, test := range []struct {
		layer string
		in    ocispec.Descriptor
		found bool
	}{{"ours", index, true}, {"no platform", index, true}, {"arm", index, false}, {"none", index, false}, {"ours", alone, true}, {"other", alone, false}} {
		f := &finder{config: image.Config{Container: image.Container{ChainID: digest.FromString(test.layer)}, Host: image.Host{OS: "linux", Architecture: "amd64"}}}
		b, err := f.find(t.Context(), c, test.in)
		if (err == nil) != test.found || test.found && b.base.Layers()[0].Digest != digest.FromString("compressed "+test.layer) {
			t.Errorf("%s: %+v, %v", test.layer, b, err)
		}
	}
	damaged := index
	damaged.Digest = alone.Digest
	if b, err := (&finder{}).find(t.Context(), c, damaged); !errdefs.IsDataLoss(err) {
		t.Errorf("what has another size gives %+v, %v", b, err)
	}
}
