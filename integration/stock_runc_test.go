package integration

import (
	"os"
	"path/filepath"
	"testing"
)

// TestStockRunc: after cryo has taken a checkpoint of a container, or restored it, runc alone can take one.
func TestStockRunc(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := "runc/" + id + ":1"
	start(t, a, id, nil, "workload", "count", "--memory", "8")
	await(t, a, id)
	forget(t, a, ref)
	by := func() {
		t.Helper()
		images := filepath.Join(a.Dir, "by-runc")
		t.Cleanup(func() { os.RemoveAll(images) })
		must(t, a.Run(t.Context(), "runc", "--root", "/run/containerd/runc/default", "checkpoint", "--leave-running",
			"--image-path", filepath.Join(images, "images"), "--work-path", filepath.Join(images, "work"), id))
		if found, err := filepath.Glob(filepath.Join(images, "images/pages-*.img")); err != nil || len(found) == 0 {
			t.Errorf("it has no memory: %v", err)
		}
		os.RemoveAll(images)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	by()
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id))
	await(t, a, id)
	by()
}
