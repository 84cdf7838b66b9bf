package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// small mounts a file system of so many MiB on a host, for use as a root of cryo's; inside and outside are its paths as the
// host and the test see it.
func small(t *testing.T, h *lab.Host, mib int) (inside, outside string) {
	t.Helper()
	inside = filepath.Join("/run", name(t))
	must(t, h.Run(t.Context(), "mkdir", inside))
	must(t, h.Run(t.Context(), "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm", mib), "tmpfs", inside))
	t.Cleanup(func() {
		must(t, h.Run(cleanupContext(t), "umount", inside))
		must(t, h.Run(cleanupContext(t), "rmdir", inside))
	})
	return inside, fmt.Sprintf("/proc/%d/root%s", h.Pid(), inside)
}

// empty wants a store to have nothing in it.
func empty(t *testing.T, root string) {
	t.Helper()
	for _, line := range traceStore(t, root) {
		t.Error("left in the store:", line)
	}
}

// TestBadFullPull has room for a part of a snapshot.
func TestBadFullPull(t *testing.T) {
	a, b := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "32")
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	for _, mib := range []int{1, 20} {
		inside, outside := small(t, b, mib)
		refused(t, b, codeFull, "o space left", "pull", ref, "--plain-http", "--root", inside)
		empty(t, outside)
	}
}

// TestBadFullRestoreBefore has room for a part of a snapshot, whose size is known: no container begins, and hardly anything is fetched.
func TestBadFullRestoreBefore(t *testing.T) {
	a, b := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "32")
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	inside, outside := small(t, b, 20)
	for _, flags := range [][]string{nil, {"--pull-first"}, {"--eager"}} {
		args := append([]string{"restore", ref, "--plain-http", "--wait", "--root", inside}, flags...)
		refused(t, b, codeFull, "MiB more are needed, and ", args...)
		if said := b.Cryo(t.Context(), args...).Stderr; strings.Contains(said, "it ran") || strings.Contains(said, "is kept") || !strings.Contains(said, "cryo prune") {
			t.Errorf("%v: it says:\n%s", flags, said)
		}
		empty(t, outside)
	}
}

// TestBadFullRestore has room for a snapshot, but not for CRIU's images made of it, which only a restore of all memory at once needs.
func TestBadFullRestore(t *testing.T) {
	a, b := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "32")
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	inside, outside := small(t, b, 50)
	must(t, b.Cryo(t.Context(), "pull", ref, "--plain-http", "--root", inside))
	id := name(t)
	cleanup(t, b, id)
	// The first restore on a host unpacks the base image in containerd, where it stays.
	must(t, b.Cryo(t.Context(), "restore", ref, "--plain-http", "--wait", "--root", inside, "--name", id))
	await(t, b, id)
	remove(t.Context(), b, id)
	before := traceStore(t, outside)
	refused(t, b, codeFull, "o space left", "restore", ref, "--plain-http", "--root", inside, "--eager")
	if lost := without(traceStore(t, outside), before, nil); len(lost) > 0 {
		t.Errorf("left in the store: %v", lost)
	}
}
