package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestStock proves the harness's CRIU and runc: the stock runtime's own checkpoint and restore, on one host.
func TestStock(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "cryo.test/"+name(t)
	start(t, a, id, []string{"--runtime", runcRuntime}, "workload", "count", "--memory", "8")
	before := await(t, a, id)
	t.Cleanup(func() {
		a.Ctr(cleanupContext(t), "images", "delete", ref)
		clearStockTemporary(t, a)
	})
	must(t, a.Ctr(t.Context(), "containers", "checkpoint", "--task", "--rw", "--image", id, ref))
	remove(t.Context(), a, id)
	must(t, a.Ctr(t.Context(), "containers", "restore", "--live", "--rw", id, ref))
	after := await(t, a, id)
	if after.Count < before.Count || after.State["sha256"] != before.State["sha256"] {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// clearStockTemporary removes the directory that containerd unpacks a checkpoint into and that only cryo's shim clears away.
func clearStockTemporary(t *testing.T, h *lab.Host) {
	paths, err := filepath.Glob(filepath.Join(h.Dir, "xdg/ctrd-checkpoint*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
	}
}
