package integration

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestArtifactShares takes snapshots of a process of which 1 % of the memory changes in between: what did not change is
// kept once in the store, and once in the registry.
func TestArtifactShares(t *testing.T) {
	a, _ := pair(t)
	const least = 128 / 4 // MiB of memory and of a segment
	id := name(t)
	startImage(t, a, shared.image, id, nil, "workload", "region", "--memory", "128")
	await(t, a, id)
	shots := func(tag string) snapshot { return shot(t, a, id, tag) }
	last := shots("0")
	for _, test := range []struct {
		name, runs string
		windows    int // of 4 MiB that the change can touch
	}{
		{"one run", "1", 2},
		{"scattered", "8", 16},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer, err := a.Ask(t.Context(), id, "runs", "10", test.runs)
			if err != nil || !answer.OK {
				t.Fatal(err, answer.Error)
			}
			stored, pushed := treeSize(t, a.CryoRoot()), treeSize(t, shared.registry.Dir)
			before := last.segments()
			last = shots(test.runs)
			fresh, bytes := 0, int64(0)
			for digest, size := range last.segments() {
				if _, shared := before[digest]; !shared {
					fresh, bytes = fresh+1, bytes+size
				}
			}
			stored, pushed = treeSize(t, a.CryoRoot())-stored, treeSize(t, shared.registry.Dir)-pushed
			t.Logf("%d of %d segments are new, %d bytes; the store grew by %d, the registry by %d", fresh, len(last.segments()), bytes, stored, pushed)
			// Go's runtime, too, changes some of its memory, in mappings that make three segments.
			if most := test.windows + 3; fresh == 0 || fresh > most || len(last.segments()) < least {
				t.Errorf("of %d segments %d are new, want 1 to %d", len(last.segments()), fresh, most)
			}
			const rest = 1 << 20 // config, index, CRIU's images, rootfs
			if stored > bytes+rest || pushed > bytes+rest {
				t.Errorf("segments of %d bytes are new, the store grew by %d, the registry by %d", bytes, stored, pushed)
			}
		})
	}
}

// shot takes a snapshot of a container that runs on, and pushes it.
func shot(t *testing.T, h *lab.Host, id, tag string) snapshot {
	t.Helper()
	ref := shared.registry.Reference("artifact/" + id + ":" + tag)
	away(t, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http", "--segment-size", "4MiB", "--parent", "none"))
	return inspect(t, h, ref)
}

// treeSize is the sum of all files' sizes below a directory.
func treeSize(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
