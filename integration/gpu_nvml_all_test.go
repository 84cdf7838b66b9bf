package integration

import (
	"strings"
	"testing"
	"time"
)

// TestGPUNVMLBeside moves a process that has NVML open beside CUDA, which the driver saves, by both engines.
func TestGPUNVMLBeside(t *testing.T) {
	for engine, flags := range map[string][]string{"driver": oneGPU, "keeper": handing} {
		t.Run(engine, func(t *testing.T) { watched(t, flags, "--nvml", "dlsym") })
	}
}

// TestGPUNVMLBesideForked has children of such a process ask as well, by NVML that they have inherited.
func TestGPUNVMLBesideForked(t *testing.T) {
	watched(t, handing, "--nvml", "dlsym", "--watching-children", "2")
}

// TestGPUNVMLOnly moves a container in which nothing uses CUDA, as that of a monitor.
func TestGPUNVMLOnly(t *testing.T) {
	watched(t, handing, "--no-cuda", "--nvml", "direct", "--watching-children", "1")
}

// TestGPUNVMLUndone has the driver fail before NVML's device files are taken, and CRIU end when they are gone: all run on, and so they do where the helper dies meanwhile.
func TestGPUNVMLUndone(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/nvml:1"
	before := startGPU(t, a, id, handing, watching...)
	order(t, a, "checkpoint * error 2")
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref), codeAborted, "the container runs on")
	carriedOut(t, a)
	unharmed(t, a, id, before)
	forget(t, a, ref)
	for hits := 0; hits == 0; { // it may have ended before
		r := killed(t, a, id, ref, "criu", func(b *background) { b.untilDumping(t, a) })
		if r.Code != 0 {
			refusal(t, r, codeAborted, "the container runs on")
			hits++
		}
		unharmed(t, a, id, before)
	}
	must(t, killed(t, a, id, ref, "helper", func(b *background) { b.untilDumping(t, a) }))
	unharmed(t, a, id, before)
}

// TestGPUNVMLAgain takes a checkpoint again and again.
func TestGPUNVMLAgain(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/nvml-again:1"
	before := startGPU(t, a, id, handing, watching...)
	forget(t, a, ref)
	for range 8 {
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
		unharmed(t, a, id, before)
	}
}

// TestGPUOpenForced overrides the rule: the checkpoint is taken, and NVML fails afterwards, which the program says.
func TestGPUOpenForced(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/nvml-forced:1"
	before := startGPU(t, a, id, oneGPU, watching...)
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--force", "gpu-open"))
	if out := must(t, a.Cryo(t.Context(), "inspect", ref)).Stdout; !strings.Contains(out, "gpu-open") {
		t.Errorf("what was overridden is not told:\n%s", out)
	}
	eventually(t, "NVML fails", 30*time.Second, func() bool {
		after, err := a.Ask(t.Context(), id, "check")
		return err == nil && after.Life == before.Life && !after.OK && strings.Contains(after.Error, "NVML says")
	})
}
