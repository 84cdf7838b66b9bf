package integration

import (
	"testing"
)

// TestBadDaemon asks where no containerd is.
func TestBadDaemon(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count")
	for _, args := range [][]string{{"checkpoint", "x", "bad/daemon:1"}, {"restore", ref}} {
		refused(t, a, codeUnavailable, "/nowhere.sock", append(args, "--address", "/nowhere.sock")...)
	}
}
