package integration

import (
	"encoding/json"
	"path/filepath"
	"testing"
)

// TestCLIRemove removes snapshots that share memory: what another needs stays, and in the end nothing is left.
func TestCLIRemove(t *testing.T) {
	a, _ := pair(t)
	id, root := name(t), filepath.Join(a.Dir, "home/remove")
	t.Cleanup(func() { a.Run(cleanupContext(t), "rm", "-rf", root) })
	start(t, a, id, nil, "workload", "region", "--memory", "32")
	for _, ref := range []string{"cli/first:1", "cli/second:1"} {
		must(t, a.Cryo(t.Context(), "--root", root, "checkpoint", id, ref, "--leave-running", "--segment-size", "4MiB", "--parent", "none"))
		if answer, err := a.Ask(t.Context(), id, "runs", "10", "1"); err != nil || !answer.OK {
			t.Fatal(err, answer.Error)
		}
	}
	const memory = 32 << 20
	both := treeSize(t, filepath.Join(root, "store/blobs"))
	for _, test := range []struct {
		ref       string
		from, to  int64 // bytes freed
		remaining string
	}{
		{"cli/first:1", 1 << 20, memory / 2, "cli/second:1"},
		{"cli/second:1", memory, both, ""},
	} {
		var removed []struct{ Freed int64 }
		out := must(t, a.Cryo(t.Context(), "--root", root, "rm", "--json", test.ref)).Stdout
		if err := json.Unmarshal([]byte(out), &removed); err != nil || len(removed) != 1 {
			t.Fatalf("%v:\n%s", err, out)
		}
		after := treeSize(t, filepath.Join(root, "store/blobs"))
		if freed := removed[0].Freed; freed < test.from || freed > test.to || freed != both-after {
			t.Errorf("rm %s says %d bytes, and freed %d, want %d to %d", test.ref, freed, both-after, test.from, test.to)
		}
		both = after
		if test.remaining != "" {
			must(t, a.Cryo(t.Context(), "--root", root, "verify", test.remaining))
		}
	}
	if both != 0 {
		t.Errorf("%d bytes are left", both)
	}
}
