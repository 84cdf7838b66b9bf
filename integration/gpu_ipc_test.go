package integration

import (
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// sharing asks fakeapp a question about shared memory, and returns the handle of its first process and the sums of all.
func sharing(t *testing.T, h *lab.Host, id, question string) (handle string, sums []float64) {
	t.Helper()
	a, err := h.Ask(t.Context(), id, question)
	if err != nil || !a.OK {
		t.Fatalf("%s: %+v, %v", question, a, err)
	}
	processes, _ := a.State["processes"].([]any)
	for i, p := range processes {
		p, _ := p.(map[string]any)
		sum, _ := p["sum"].(float64)
		sums = append(sums, sum)
		if i == 0 {
			handle, _ = p["handle"].(string)
		}
	}
	return handle, sums
}

// TestGPUKeeperEngineIPC has the second process of a container open memory that the first one has from the library: a checkpoint is refused, as without the
// library, and both go on with it.
func TestGPUKeeperEngineIPC(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/ipc:1"
	before := startGPU(t, a, id, handing, "--processes", "2", "--blocks", "5")
	forget(t, a, ref)
	handle, lent := sharing(t, a, id, "lend 0")
	if _, sums := sharing(t, a, id, "borrow "+handle); len(sums) != 2 || sums[1] != lent[0] || lent[0] == lent[1] {
		t.Fatalf("the first process has %v, the second found %v", lent, sums)
	}
	for _, flags := range [][]string{{}, {"--leave-running"}, {"--gpu-engine", "driver"}} {
		refusal(t, a.Cryo(t.Context(), append([]string{"checkpoint", id, ref}, flags...)...), codePrecondition, "gpu-several")
	}
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--force", "gpu-several", "--gpu-engine", "keeper"), codePrecondition, "cudaIpc")
	if _, sums := sharing(t, a, id, "borrowed"); sums[1] != lent[0] {
		t.Errorf("the second process finds %v, the first one has %v", sums, lent)
	}
	unharmed(t, a, id, before)
	alone(t, a)
}
