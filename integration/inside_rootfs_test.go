package integration

import (
	"strings"
	"testing"
)

// TestInsideRootFS has the image's files changed in every way.
func TestInsideRootFS(t *testing.T) {
	travel(t, journey{}, "rootfs")
}

// TestInsideReplaced has the image's files and directories replaced by others, also while they were open, the running
// program among them.
func TestInsideReplaced(t *testing.T) {
	travel(t, journey{}, "overlay", "--program")
}

// TestInsideLinked has a file open by a name that is gone, while it has another: there is no snapshot, and the container goes on.
func TestInsideLinked(t *testing.T) {
	a, _ := pair(t)
	j := journey{id: name(t)}
	startImage(t, a, shared.image, j.id, nil, "workload", "overlay", "--link")
	before := await(t, a, j.id)
	if r := a.Cryo(t.Context(), "checkpoint", j.id, j.ref()); r.Code == 0 || !strings.Contains(r.Stderr, "/usr/share/a/name") || !strings.Contains(r.Stderr, "hint: have the program close") {
		t.Errorf("exit status %d: %s", r.Code, r.Stderr)
	}
	goneOn(t, before, await(t, a, j.id))
}
