package integration

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestGPUAgain takes ten checkpoints of one container, which stays as it was each time: nothing grows, neither in the container
// nor in its shim, and each snapshot is whole. The last restored one goes on in the same way.
func TestGPUAgain(t *testing.T) {
	const cycles, settled = 10, 3
	a, b := gpuPair(t)
	id, ref := name(t), shared.registry.Reference("gpu/again:1")
	before := startSeveral(t, a, id)
	forget(t, a, ref)
	forget(t, b, ref)
	var first usage
	for i := 1; i <= cycles; i++ {
		if _, err := a.Ask(t.Context(), id, "change", strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
		unharmed(t, a, id, before)
		if i < cycles {
			must(t, a.Cryo(t.Context(), "rm", ref))
		}
		if i == settled {
			first = usageOf(t, a)
		}
	}
	eventually(t, fmt.Sprintf("no more in use than the %+v after %d checkpoints", first, settled), 30*time.Second, func() bool {
		now := usageOf(t, a)
		return now.processes <= first.processes && now.descriptors <= first.descriptors && now.memory <= first.memory+8<<20
	})
	if n := helpers(t, a); n != 0 {
		t.Errorf("%d helpers are left", n)
	}
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	unharmed(t, b, id, before)
}

// TestGPUNone has containers without GPUs on a host that has some: no helper is started for them, on no way.
func TestGPUNone(t *testing.T) {
	a, _ := gpuPair(t)
	if err := a.Import(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.GPUCalls(); err != nil {
		t.Fatal(err)
	}
	id, ref := name(t), "gpu/none:1"
	start(t, a, id, nil, "workload", "count")
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	must(t, a.Ctr(t.Context(), "tasks", "pause", id))
	must(t, a.Ctr(t.Context(), "tasks", "resume", id))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id))
	counts(t, a, id)
	calls, err := a.GPUCalls()
	if err != nil || len(calls) > 0 {
		t.Errorf("a helper has been started: %v %v", calls, err)
	}
}

// TestGPUUnused has a container with a GPU that no process of it uses: no helper is started to save it, and it goes to a host
// whose driver could not load anything.
func TestGPUUnused(t *testing.T) {
	a, b := gpuPair(t)
	must(t, a.Ctr(t.Context(), append([]string{"images", "pull"}, append(shared.registry.CtrFlags(lab.Password), shared.image)...)...))
	id, ref := name(t), shared.registry.Reference("gpu/unused:1")
	startImage(t, a, shared.image, id, oneGPU, "workload", "count")
	before := await(t, a, id)
	forget(t, a, ref)
	forget(t, b, ref)
	if _, err := a.GPUCalls(); err != nil {
		t.Fatal(err)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http"))
	counts(t, a, id)
	if calls, err := a.GPUCalls(); err != nil || len(calls) > 0 {
		t.Errorf("a helper has been started: %v %v", calls, err)
	}
	setGPUs(t, b, lab.GPUs{UVM: 508, Driver: "570.133.20", Devices: gpusOfB.Devices}, gpusOfB)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	goneOn(t, before, await(t, b, id))
	counts(t, b, id)
}

// TestGPUVerify asks for a trial of the snapshot of a container with a GPU, which would need its memory twice: it is refused before anything is frozen.
func TestGPUVerify(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	before := startGPU(t, a, id, oneGPU, "--mib", "2")
	refused(t, a, codePrecondition, "verify-gpu: ", "checkpoint", id, "gpu/verify:1", "--verify", "--leave-running")
	goneOn(t, before, await(t, a, id))
}
