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

// TestGPUKeeperEngineIPC has the second process of a container open memory that the first one has from the library. It is left running and restored, and each finds what the other
// writes; the driver's engine refuses it.
func TestGPUKeeperEngineIPC(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	live, ref := "gpu/"+id+"-live:1", shared.registry.Reference("gpu/"+id+":1")
	before := startGPU(t, a, id, handing, "--processes", "2", "--blocks", "5")
	for _, h := range []*lab.Host{a, b} {
		forget(t, h, live)
		forget(t, h, ref)
	}
	handle, lent := sharing(t, a, id, "lend 0")
	if _, sums := sharing(t, a, id, "borrow "+handle); len(sums) != 2 || sums[1] != lent[0] || lent[0] == lent[1] {
		t.Fatalf("the first process has %v, the second found %v", lent, sums)
	}
	for _, flags := range [][]string{{}, {"--force", "all"}} {
		refused(t, a, codePrecondition, "imported GPU memory", append([]string{"checkpoint", id, live, "--gpu-engine", "driver"}, flags...)...)
	}
	for key := range 2 {
		must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
		unharmed(t, a, id, before)
		lendAgain(t, a, id, handle, key)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	remove(t.Context(), a, id)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	unharmed(t, b, id, before)
	lendAgain(t, b, id, handle, 2)
	alone(t, a)
	alone(t, b)
}

// lendAgain fails the test unless the second process finds what the first one writes, and the first one's handle is what it was.
func lendAgain(t *testing.T, h *lab.Host, id, handle string, key int) {
	t.Helper()
	shareOn(t, h, id, 20+key)
	again, lent := sharing(t, h, id, "lend 0")
	if _, sums := sharing(t, h, id, "borrowed"); sums[1] != lent[0] || again != handle {
		t.Errorf("the second process finds %v, the first one has %v by the handle %s, before %s", sums, lent, again, handle)
	}
}
