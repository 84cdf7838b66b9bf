package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// virtual are allocations that a program makes with handles and maps by itself, 30 MiB, beside two of cuMemAlloc.
var virtual = []string{"--blocks", "1,5,4,8,4,6,4,4", "--kinds", "plain,plain,whole,chunks,released,retained,held,twice"}

// asBefore fails the test unless a container has what it had, and finds its memory with handles as it is without the library.
func asBefore(t *testing.T, h *lab.Host, id string, before lab.Answer) lab.Answer {
	t.Helper()
	after := unharmed(t, h, id, before)
	if a, err := h.Ask(t.Context(), id, "ranges"); err != nil || !a.OK {
		t.Errorf("ranges: %+v, %v", a, err)
	}
	return after
}

// TestGPUKeeperEngineVirtual has memory that a program maps by itself go to another host's GPU and back, left running, ended and prewarmed. Its handles and mappings stay what they were.
func TestGPUKeeperEngineVirtual(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	live, ref, back := "gpu/"+id+"-live:1", shared.registry.Reference("gpu/"+id+":1"), shared.registry.Reference("gpu/"+id+":2")
	before := startGPU(t, a, id, handing, virtual...)
	for _, h := range []*lab.Host{a, b} {
		forget(t, h, live)
		forget(t, h, ref)
		forget(t, h, back)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
	handedOver(t, a, live, 36<<20)
	asBefore(t, a, id, before)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	handedOver(t, a, ref, 36<<20)
	remove(t.Context(), a, id)

	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices", "--device", "nvidia.com/gpu=1"))
	after := asBefore(t, b, id, before)
	goneOn(t, before, after)
	must(t, b.Cryo(t.Context(), "checkpoint", id, back, "--push", "--plain-http"))
	handedOver(t, b, back, 36<<20)
	remove(t.Context(), b, id)

	must(t, a.Cryo(t.Context(), "restore", back, "--name", id, "--plain-http", "--allow", "devices"))
	goneOn(t, after, asBefore(t, a, id, before))
	must(t, a.Cryo(t.Context(), "prewarm", "--gpu", back))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", back, "--name", id, "--allow", "devices"))
	asBefore(t, a, id, before)
	must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--gpu-engine", "driver")) // which takes it as well
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", live, "--name", id, "--allow", "devices"))
	asBefore(t, a, id, before)
	alone(t, a)
	alone(t, b)
}

// smallPieces has a container's memory be of pieces of 4 MiB, and those of what it makes with one handle for descriptors of 16.
var smallPieces = slices.Concat(handing, []string{"--env", "CRYO_GPU_PIECE_BYTES=4194304"})

// TestGPUKeeperEngineVirtualLarge has a program make most of a GPU's memory by one call, as JAX does. There is no room for a copy of it: it stands still until all has been taken, and
// goes to a GPU of another number piece by piece.
func TestGPUKeeperEngineVirtualLarge(t *testing.T) {
	a, b := renumbered(t)
	id := name(t)
	ref, live := shared.registry.Reference("gpu/"+id+":1"), "gpu/"+id+"-live:1"
	before := startGPU(t, a, id, smallPieces, "--blocks", "96", "--kinds", "whole")
	for _, h := range []*lab.Host{a, b} {
		forget(t, h, ref)
		forget(t, h, live)
	}
	small := numbered(gpusOfA, "0", "1")
	small.Devices[0].Memory = int64(inUseOn(t, a)[a.UUID(0)]) + 32<<20
	setGPUs(t, a, small, gpusOfA)
	for range 2 {
		must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
		handedOver(t, a, live, 96<<20)
		asBefore(t, a, id, before)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	handedOver(t, a, ref, 96<<20)
	remove(t.Context(), a, id)

	const largest = 16 << 20
	cleanup(t, b, id)
	free := inUseOn(t, b)
	tight := numbered(gpusOfB, "4", "1")
	for i := range tight.Devices {
		tight.Devices[i].Memory = int64(free[b.UUID(i)]) + 96<<20 + largest + 4<<20
	}
	setGPUs(t, b, tight, gpusOfB)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	asBefore(t, b, id, before)
	must(t, b.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
	handedOver(t, b, live, 96<<20)
	asBefore(t, b, id, before)
	remove(t.Context(), b, id)
	eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUseOn(t, b)[b.UUID(0)] == free[b.UUID(0)] })
	alone(t, a)
	alone(t, b)
}
