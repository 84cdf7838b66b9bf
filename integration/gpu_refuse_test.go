package integration

import (
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestGPUForced overrides a rule, by flag and by annotation, and names rules that are not there.
func TestGPUForced(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/forced:1"
	before := startGPU(t, a, id, oneGPU, "--processes", "2")
	forget(t, a, ref)
	refused(t, a, codeUsage, "no rule", "checkpoint", id, ref, "--force", "gpu-seven")
	refused(t, a, codePrecondition, "gpu-several", "checkpoint", id, ref, "--force", "gpu-peer")
	for _, rule := range []string{"gpu-several", "all"} {
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--force", rule))
		unharmed(t, a, id, before)
		if out := must(t, a.Cryo(t.Context(), "inspect", ref)).Stdout; !strings.Contains(out, "gpu-several") {
			t.Errorf("what was overridden is not told:\n%s", out)
		}
		must(t, a.Cryo(t.Context(), "rm", ref))
	}
}

// TestGPUForcedPeer overrides the rule that is there for this: the driver takes the process down and not up again. It is ended,
// and reported lost with the driver's words.
func TestGPUForcedPeer(t *testing.T) {
	a, _ := gpuPair(t)
	before := trace(t, a)
	id := name(t)
	startGPU(t, a, id, bothGPUs, "--peer")
	if r := a.Cryo(t.Context(), "checkpoint", id, "gpu/peer:1", "--leave-running"); r.Code != codeLost || !strings.Contains(r.Stderr, "CUDA_ERROR_INVALID_VALUE") {
		t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
	}
	must(t, a.Cryo(t.Context(), "rm", "gpu/peer:1")) // it is complete, and all that there is
	gone(t, a, id)
	remove(t.Context(), a, id)
	wantTrace(t, a, before)
}

// TestGPUDivided has a GPU that is divided into instances.
func TestGPUDivided(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	before := startGPU(t, a, id, oneGPU)
	divided := gpusOfA
	divided.Devices = []lab.GPU{{Minor: 0, MIG: true}, {Minor: 1}}
	setGPUs(t, a, divided, gpusOfA)
	refused(t, a, codePrecondition, "gpu-mig", "checkpoint", id, "gpu/divided:1")
	unharmed(t, a, id, before)
}

// setGPUs makes a host's GPUs others for the time of the test.
func setGPUs(t *testing.T, h *lab.Host, now, afterwards lab.GPUs) {
	t.Helper()
	t.Cleanup(func() {
		if err := h.SetGPUs(afterwards); err != nil {
			t.Error(err)
		}
	})
	if err := h.SetGPUs(now); err != nil {
		t.Fatal(err)
	}
}
