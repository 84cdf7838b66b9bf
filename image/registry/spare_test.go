package registry

import (
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestSpare: a rootfs difference that nobody needs is not asked of the registry, unless it is nowhere else, and the snapshot in the store is whole in any case.
func TestSpare(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	sp := withSegments(1, 1, 2)
	sp.RootFS = true
	src, d := pushed(t, f, "p:1", sp)
	layer := manifestOf(t, src, d).Layers[2]
	for name, test := range map[string]struct {
		from    image.Fetcher // nil: it is needed
		fetched int           // from the registry
	}{
		"needed": {nil, 1}, "elsewhere": {src, 0}, "nowhere else": {storetest.Open(t), 1},
	} {
		f.forget()
		s, o := storetest.Open(t), fast()
		o.RootFS = func(got ocispec.Descriptor) image.Fetcher {
			if got.Digest != layer.Digest || got.Annotations[image.AnnotationRawDigest] == "" {
				t.Errorf("%s: asked for %v", name, got)
			}
			return test.from
		}
		p := puller(t, s, f.ref("p:1"), o)
		if err := p.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantThere(t, s, test.from == nil, layer)
		if err := p.Finish(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantThere(t, s, true, layer)
		if n := f.count("GET /v2/p/blobs/" + layer.Digest.String()); n != test.fetched {
			t.Errorf("%s: fetched %d times", name, n)
		}
		if err := storetest.Check(t.Context(), s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
