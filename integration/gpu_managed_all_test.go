package integration

import (
	"slices"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// managedByDriver has the driver make a container's managed memory.
var managedByDriver = []string{"--annotation", "io.cryo.gpu.managed=driver"}

// alternating is a program whose host and device change managed memory by turns, 2 allocations of 6 MiB and variables in 4 MiB, with a handler for SIGSEGV of its own, beside managed and other memory that the device alone changes.
var alternating = []string{"--alternate", "6", "--managed", "--blocks", "3,1,4"}

// TestGPUManaged leaves a program with managed memory running and moves it, while its host and its device touch that memory all the time. What neither touches at the moment of the checkpoint is on the side where it was.
func TestGPUManaged(t *testing.T) { leftRunningAndMoved(t, alternating) }

// TestGPUManagedPool does the same with a program that has allocated a half of that memory from a pool.
func TestGPUManagedPool(t *testing.T) {
	leftRunningAndMoved(t, append(slices.Clone(alternating), "--pool"))
}

func leftRunningAndMoved(t *testing.T, program []string) {
	t.Helper()
	a, b := gpuPair(t)
	id := name(t)
	live, ref := "gpu/"+id+"-live:1", shared.registry.Reference("gpu/"+id+":1")
	before := startGPU(t, a, id, handing, program...)
	for _, h := range []*lab.Host{a, b} {
		forget(t, h, live)
		forget(t, h, ref)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
	handedOver(t, a, live, 22<<20)
	unharmed(t, a, id, before)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	handedOver(t, a, ref, 22<<20)
	remove(t.Context(), a, id)

	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	goneOn(t, before, unharmed(t, b, id, before))
	alone(t, a)
	alone(t, b)
}

// TestGPUManagedSides moves a program back and forth with its managed memory on one side or the other, and with children that it has forked.
func TestGPUManagedSides(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	hosts := []*lab.Host{a, b}
	ref := shared.registry.Reference("gpu/" + id + ":1")
	before := startGPU(t, a, id, handing, alternating...)
	for _, h := range hosts {
		forget(t, h, ref)
	}
	asks(t, a, id, "fork 2")
	for i, side := range []string{"host", "device", "host", "device"} {
		from, to := hosts[i%2], hosts[(i+1)%2]
		asks(t, from, id, "park "+side)
		must(t, from.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--gpu-engine", "keeper"))
		must(t, from.Cryo(t.Context(), "rm", ref))
		asks(t, from, id, "park "+side) // it has not gone on
		must(t, from.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
		handedOver(t, from, ref, 22<<20)
		remove(t.Context(), from, id)
		cleanup(t, to, id)
		must(t, to.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
		unharmed(t, to, id, before)
		asks(t, to, id, "park nowhere")
		unharmed(t, to, id, before)
		must(t, from.Cryo(t.Context(), "rm", ref))
		must(t, to.Cryo(t.Context(), "rm", ref))
	}
	alone(t, a)
	alone(t, b)
}

// TestGPUManagedPinned leaves a program running and moves it, four times. The program prefers the host for a part of its managed memory, which host and device use there at the same time.
func TestGPUManagedPinned(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	ref := shared.registry.Reference("gpu/" + id + ":1")
	before := startGPU(t, a, id, handing, append(slices.Clone(alternating), "--preferred")...)
	hosts := []*lab.Host{a, b}
	for _, h := range hosts {
		forget(t, h, ref)
	}
	for i := range 4 {
		from, to := hosts[i%2], hosts[(i+1)%2]
		must(t, from.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--gpu-engine", "keeper"))
		must(t, from.Cryo(t.Context(), "rm", ref))
		unharmed(t, from, id, before)
		must(t, from.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
		bytes, fallbacks := pieces(t, from, ref)
		if bytes == 0 || bytes >= 22<<20 || fallbacks != "" {
			t.Errorf("%.0f bytes were handed over; fallbacks: %s", bytes, fallbacks)
		}
		remove(t.Context(), from, id)
		cleanup(t, to, id)
		must(t, to.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
		unharmed(t, to, id, before)
		must(t, from.Cryo(t.Context(), "rm", ref))
		must(t, to.Cryo(t.Context(), "rm", ref))
	}
	alone(t, a)
	alone(t, b)
}

// TestGPUManagedNoHolder: where nothing takes the memory of a program of which a part is memory of the host, its checkpoint is refused, since the driver would lose it.
func TestGPUManagedNoHolder(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/managed-no-holder:1"
	before := startGPU(t, a, id, handing, append(slices.Clone(alternating), "--preferred")...)
	forget(t, a, ref)
	order(t, a, "cuMemHostRegister * error 2 always")
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"), codePrecondition, "nothing can take its memory")
	unharmed(t, a, id, before)
	if err := a.Order(); err != nil {
		t.Fatal(err)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	unharmed(t, a, id, before)
}

// TestGPUManagedAgain takes 20 snapshots of a program that goes on, while host and device touch its managed memory all the time.
func TestGPUManagedAgain(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/managed-again:1"
	before := startGPU(t, a, id, handing, append(slices.Clone(alternating), "--storm", "1")...)
	forget(t, a, ref)
	for range 20 {
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--gpu-engine", "keeper"))
		unharmed(t, a, id, before)
		must(t, a.Cryo(t.Context(), "rm", ref))
	}
	alone(t, a)
}

// TestGPUManagedRefused: managed memory of the driver's is refused by name, with what to do, and so is a word that is none.
func TestGPUManagedRefused(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	before := startGPU(t, a, id, slices.Concat(handing, managedByDriver), "--managed")
	refused(t, a, codeUnsupported, "io.cryo.gpu.managed=driver", "checkpoint", id, "gpu/managed-refused:1")
	unharmed(t, a, id, before)
	r := a.Ctr(t.Context(), slices.Concat([]string{"run", "--detach", "--runtime", "io.containerd.runc.cryo.v1", "--annotation", "io.cryo.gpu.managed=yes"}, oneGPU, []string{sharedGPUs.image, id + "-word"})...)
	if r.Code == 0 {
		t.Error("a word that is none was taken")
	}
	remove(t.Context(), a, id+"-word")
}
