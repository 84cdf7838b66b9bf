package integration

import (
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestGPUDamaged has a segment damaged in the store. The memory of a container with GPUs is filled in before the container runs, by a process that finds it: the command
// exits by what that process has found, and not as where CRIU fails.
func TestGPUDamaged(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, oneGPU)
	id := name(t)
	cleanup(t, b, id)
	var segment ocispec.Descriptor
	for digest, size := range inspect(t, b, ref).segments() {
		if size > segment.Size {
			segment = ocispec.Descriptor{Digest: digest, Size: size}
		}
	}
	args := []string{"restore", ref, "--name", id, "--plain-http", "--allow", "devices", "--pull", "never"}
	damaged(t, storedAt(b, segment), damages[2].do, func() {
		refusal(t, quietly(b.Cryo(t.Context(), args...)), codeDamaged, "")
	})
	must(t, b.Cryo(t.Context(), args...))
	goneOn(t, before, unharmed(t, b, id, before))
}
