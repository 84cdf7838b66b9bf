package integration

import "testing"

// TestInsideRootFS has the image's files changed in every way.
func TestInsideRootFS(t *testing.T) {
	travel(t, journey{}, "rootfs")
}
