package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// castingAll are processes, each on a GPU of its own, that have a multicast object with 4 MiB of each GPU, beside 3 MiB of their own.
func castingAll(processes int) []string {
	return []string{"--processes", fmt.Sprint(processes), "--apart", "--multicast", "4", "--blocks", "3"}
}

// onGPUs returns the flags of ctr for a container with the first GPUs of its host and the engine keeper.
func onGPUs(n int) (flags []string) {
	for i := range n {
		flags = append(flags, "--device", fmt.Sprintf("nvidia.com/gpu=%d", i))
	}
	return slices.Concat(flags, engineKeeper)
}

// TestGPUMulticast leaves two processes with a multicast object running, and restores them on other GPUs: what each writes for all reaches all, and sums are right. No rule is overridden.
func TestGPUMulticast(t *testing.T) {
	sharedJourney(t, 1, 1, 2*6<<20, onGPUs(2), castingAll(2)...)
}

// manyGPUs replaces the GPUs of a host by GPUs with these device nodes, until the test ends.
func manyGPUs(t *testing.T, h *lab.Host, after lab.GPUs, minors ...int) {
	t.Helper()
	g := after
	g.Devices = nil
	for _, minor := range minors {
		g.Devices = append(g.Devices, lab.GPU{Minor: minor})
	}
	setGPUs(t, h, g, after)
}
