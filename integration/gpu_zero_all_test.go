package integration

import "testing"

// TestGPUKeeperEngineZero has a program with memory that is zero: nothing of it is copied, and it is zero where it is restored.
func TestGPUKeeperEngineZero(t *testing.T) {
	a, b := gpuPair(t)
	id, ref := name(t), shared.registry.Reference("gpu/"+name(t)+":1")
	before := startGPU(t, a, id, smallPieces, "--blocks", "96", "--kinds", "blank")
	forget(t, a, ref)
	forget(t, b, ref)
	order(t, a, "cuMemcpyDtoHAsync * error 700")
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	handedOver(t, a, ref, 96<<20)
	remove(t.Context(), a, id)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	asBefore(t, b, id, before)
	alone(t, a)
	alone(t, b)
}
