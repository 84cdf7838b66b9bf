package integration

import (
	"context"
	"slices"
	"strings"
	"testing"
)

// watching is a program with a process that watches GPUs by NVML without CUDA, and two children of that.
var watching = []string{"--processes", "2", "--nvml", "dlsym", "--watchers", "4", "--watching-children", "2"}

// TestGPUOpen has a process that has opened the driver's device files without CUDA, by NVML or otherwise, and without the library: it is named, and all run on.
func TestGPUOpen(t *testing.T) {
	a, _ := gpuPair(t)
	for name, args := range map[string][]string{"open": {"--processes", "2", "--watch"}, "nvml": watching} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-")
			before := startGPU(t, a, id, oneGPU, args...)
			refused(t, a, codePrecondition, "gpu-open", "checkpoint", id, "gpu/open:1")
			if after := answers(t, a, id); after.Life != before.Life {
				t.Error("it is another")
			}
			if name == "nvml" {
				unharmed(t, a, id, before)
			}
		})
	}
}

// TestGPUNVMLKeeper moves a program with a process that has NVML open without CUDA, while four threads of it and two forked children ask all the time. It is frozen, left running, and restored on a host with other GPUs:
// no query fails.
func TestGPUNVMLKeeper(t *testing.T) { watched(t, handing, watching...) }

// watched moves such a program, whose container has these flags.
func watched(t *testing.T, flags []string, args ...string) {
	t.Helper()
	a, b := gpuPair(t)
	id := name(t)
	ref := shared.registry.Reference("gpu/" + strings.ToLower(id) + ":1")
	before := startGPU(t, a, id, flags, args...)
	forget(t, a, ref)
	forget(t, b, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	unharmed(t, a, id, before)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	must(t, b.Cryo(t.Context(), slices.Concat([]string{"restore", ref, "--plain-http"}, oneGPU)...))
	t.Cleanup(func() { remove(context.WithoutCancel(t.Context()), b, id) })
	unharmed(t, b, id, before)
}
