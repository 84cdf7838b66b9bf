package store

import (
	"runtime"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestParseCost: an index or manifest of millions of empty objects is refused before they are made.
func TestParseCost(t *testing.T) {
	index := []byte(`{"schemaVersion":2,"manifests":[` + strings.Repeat("{},", 16<<20/3) + "{}]}")
	manifest := []byte(`{"schemaVersion":2,"layers":[` + strings.Repeat("{},", 4<<20/3-20) + "{}]}")
	for name, parse := range map[string]func() error{
		"index": func() error { _, err := ParseIndex(index); return err },
		"manifest": func() error {
			_, _, err := successors(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest}, manifest)
			return err
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := parse()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; err == nil || n > 1<<20 {
			t.Errorf("%s: %v, and it took %d KiB", name, err, n>>10)
		}
	}
}
