package integration

import (
	"slices"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// emulating makes a container one with the engine keeper whose library makes managed memory.
var emulating = slices.Concat(handing, []string{"--annotation", "io.cryo.gpu.managed=emulate"})

// alternating is a program whose host and device change managed memory by turns, 2 allocations of 6 MiB, with a handler for SIGSEGV of its own, beside managed and other memory that the device alone changes.
var alternating = []string{"--alternate", "6", "--managed", "--blocks", "3,1,4"}

// TestGPUManaged leaves a program with managed memory running and moves it, while its host and its device touch that memory all the time. What neither touches at the moment of the checkpoint is on the side where it was.
func TestGPUManaged(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	live, ref := "gpu/"+id+"-live:1", shared.registry.Reference("gpu/"+id+":1")
	before := startGPU(t, a, id, emulating, alternating...)
	for _, h := range []*lab.Host{a, b} {
		forget(t, h, live)
		forget(t, h, ref)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
	handedOver(t, a, live, 18<<20)
	unharmed(t, a, id, before)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	handedOver(t, a, ref, 18<<20)
	remove(t.Context(), a, id)

	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	goneOn(t, before, unharmed(t, b, id, before))
	alone(t, a)
	alone(t, b)
}
