package integration

import (
	"testing"
)

// polls is a program that asks the driver all the time whether a stream is idle, by a call that ends the process while its device memory is in host memory.
var polls = []string{"--poll", "--mib", "4"}

// slowDriver has the driver take half a second for what it does to each process.
var slowDriver = []string{"checkpoint * slow 300", "restore * slow 300", "unlock * slow 100"}

// TestGPUStopped: no thread of the program runs between the driver's checkpoint and its restore.
func TestGPUStopped(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/stopped:1"
	before := startGPU(t, a, id, oneGPU, polls...)
	forget(t, a, ref)
	for range 2 {
		order(t, a, slowDriver...)
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
		goneOn(t, before, unharmed(t, a, id, before))
	}
	// A failure after the driver's checkpoint is undone.
	order(t, a, "checkpoint * slow 300", "restore * slow 300")
	must(t, a.Ctr(t.Context(), "tasks", "pause", id))
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	must(t, a.Ctr(t.Context(), "tasks", "resume", id))
	goneOn(t, before, unharmed(t, a, id, before))
	order(t, a, slowDriver...)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), a, id)
	for range 2 {
		order(t, a, "restore * slow 300", "unlock * slow 100")
		must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
		goneOn(t, before, unharmed(t, a, id, before))
		remove(t.Context(), a, id)
	}
}
