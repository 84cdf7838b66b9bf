package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// sharingAll are processes that share memory by descriptors, each with all others, 4 MiB each, beside 8 MiB of their own.
func sharingAll(processes int) []string {
	return []string{"--processes", fmt.Sprint(processes), "--share", "4", "--blocks", "5,3"}
}

// shareOn fails the test unless what processes write after a restore is seen by all others.
func shareOn(t *testing.T, h *lab.Host, id string, key int) {
	t.Helper()
	for _, question := range []string{fmt.Sprintf("change %d", key), "check"} {
		if a, err := h.Ask(t.Context(), id, question); err != nil || !a.OK {
			t.Fatalf("%s: %+v, %v", question, a, err)
		}
	}
}

// imported counts the imports of processes of a snapshot.
func imported(t *testing.T, h *lab.Host, ref string) (n int) {
	t.Helper()
	gpu, _ := decoded(t, h.Cryo(t.Context(), "inspect", ref, "--json"))["config"].(map[string]any)["gpu"].(map[string]any)
	all, _ := gpu["processes"].([]any)
	for _, p := range all {
		list, _ := p.(map[string]any)["imports"].([]any)
		n += len(list)
	}
	return n
}

// TestGPUShared leaves processes that share device memory running, and restores them: each sees what the others write afterwards. No rule is overridden.
func TestGPUShared(t *testing.T) { sharedJourney(t, 1, 2, 2*12<<20, handing, sharingAll(2)...) }

// sharedJourney leaves a container running so many times and then restores it on the second host, and wants each process to see what the others write afterwards. The snapshot must record
// so many imports, and at least so many bytes that were handed over.
func sharedJourney(t *testing.T, rounds, imports int, bytes float64, flags []string, program ...string) {
	t.Helper()
	a, b := gpuPair(t)
	id := name(t)
	live, ref := "gpu/"+id+"-live:1", shared.registry.Reference("gpu/"+id+":1")
	before := startGPU(t, a, id, flags, program...)
	for _, h := range []*lab.Host{a, b} {
		forget(t, h, live)
		forget(t, h, ref)
	}
	for key := range rounds {
		must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
		unharmed(t, a, id, before)
		shareOn(t, a, id, 7+key)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	handedOver(t, a, ref, bytes)
	if n := imported(t, a, ref); n != imports {
		t.Errorf("%d imports are recorded", n)
	}
	remove(t.Context(), a, id)

	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	goneOn(t, before, unharmed(t, b, id, before))
	shareOn(t, b, id, 9)
	alone(t, a)
	alone(t, b)
}

// TestGPUSharedDriver: the driver's engine loses them, and so it refuses them, also where rules are overridden.
func TestGPUSharedDriver(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	before := startGPU(t, a, id, handing, sharingAll(2)...)
	for _, flags := range [][]string{{}, {"--force", "all"}} {
		refused(t, a, codePrecondition, "imported GPU memory", append([]string{"checkpoint", id, "gpu/shared-driver:1", "--gpu-engine", "driver"}, flags...)...)
	}
	unharmed(t, a, id, before)
	shareOn(t, a, id, 3)
}

// TestGPUSharedKept: a program that has kept a descriptor of its memory is refused, unharmed.
func TestGPUSharedKept(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	before := startGPU(t, a, id, handing, "--blocks", "4,4", "--kinds", "exported,whole")
	refused(t, a, codePrecondition, "has open a descriptor", "checkpoint", id, "gpu/shared-kept:1", "--leave-running")
	unharmed(t, a, id, before)
	alone(t, a)
}

// onDevices makes containers of processes that share, on one GPU or on two.
var onDevices = map[string][]string{"one GPU": handing, "two GPUs": slices.Concat(bothGPUs[:4], engineKeeper)}
