package image

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// slowFetcher does not answer for one blob until its context ends.
type slowFetcher struct {
	Fetcher
	slow string
}

func (f slowFetcher) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if d.Digest.String() == f.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.Fetcher.Fetch(ctx, d)
}

func segmentsOf(t testing.TB, f fakeImages, o PackOptions) map[digest.Digest]int64 {
	t.Helper()
	store := newMemoryStore()
	d := mustPack(t, store, testSource(f.write(t)), o)
	s, err := Open(context.Background(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[digest.Digest]int64)
	for _, l := range s.Segments() {
		out[l.Digest] = l.Size
	}
	return out
}

// TestSharedSegments says that memory which did not change gives the same segments: the same memory all of them, memory of which
// one window changed all others, also where pages came, went or moved in CRIU's files.
func TestSharedSegments(t *testing.T) {
	t.Parallel()
	const window = 1 << 20
	o := PackOptions{SegmentSize: window}
	r := rand.New(rand.NewPCG(8, 8))
	f := fakeImages{maps: map[string]memory{}}
	for p := range 2 {
		m := make(memory)
		for w := range 12 {
			for page := range 100 + r.IntN(150) {
				m[uint64(p+1)<<32+uint64(w)*window+uint64(page)*testPage] = randomPage(r, 1+r.IntN(2))
			}
		}
		f.maps[fmt.Sprintf("pagemap-%d.img", p+1)] = m
	}
	before := segmentsOf(t, f, o)
	if again := segmentsOf(t, f, o); !maps.Equal(before, again) {
		t.Error("the same memory gives other segments")
	}
	if len(before) != 24 {
		t.Errorf("%d segments instead of 24", len(before))
	}
	changed := []struct {
		name string
		do   func(m memory)
	}{
		{"a page changes", func(m memory) { m[1<<32+5*window] = randomPage(r, 2) }},
		{"a page goes", func(m memory) { delete(m, 1<<32+7*window) }},
		{"a page comes", func(m memory) { m[1<<32+9*window+255*testPage] = randomPage(r, 2) }},
		{"a page becomes zero", func(m memory) { m[1<<32+11*window] = make([]byte, testPage) }},
	}
	for i, c := range changed {
		t.Run(c.name, func(t *testing.T) {
			c.do(f.maps["pagemap-1.img"])
			after := segmentsOf(t, f, o)
			missing := 0
			for d := range before {
				if _, ok := after[d]; !ok {
					missing++
				}
			}
			if missing != i+1 { // changes add up
				t.Errorf("%d of %d segments changed, not %d", missing, len(before), i+1)
			}
		})
	}
}
