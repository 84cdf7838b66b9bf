package integration

import (
	"slices"
	"testing"
)

// TestGPUForkedKeeper is TestGPUForked by the engine keeper.
func TestGPUForkedKeeper(t *testing.T) { forked(t, handing) }

// TestGPUForking takes checkpoints of a program that forks all the time: children that end at once, later, that run another program, and that have children of their own. It has 64 that stay as well.
func TestGPUForking(t *testing.T) {
	for engine, flags := range map[string][]string{"driver": oneGPU, "keeper": handing} {
		t.Run(engine, func(t *testing.T) {
			a, _ := gpuPair(t)
			id, ref := name(t), "gpu/forking-"+engine+":1"
			before := startGPU(t, a, id, flags, "--mib", "4")
			forget(t, a, ref)
			asks(t, a, id, "fork 64")
			asks(t, a, id, "forking 3")
			for range 5 {
				must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
				unharmed(t, a, id, before)
			}
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
			gone(t, a, id)
			must(t, a.Ctr(t.Context(), "containers", "delete", id))
			must(t, a.Cryo(t.Context(), slices.Concat([]string{"restore", ref}, oneGPU)...))
			unharmed(t, a, id, before)
		})
	}
}
