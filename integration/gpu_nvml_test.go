package integration

import (
	"context"
	"slices"
	"strings"
	"testing"
)

// watching is a program with a process that watches GPUs by NVML without CUDA.
var watching = []string{"--processes", "2", "--nvml", "plain", "--watchers", "4"}

// TestGPUOpen has a process whose device files of the driver its checkpoint does not close: it is named, and all run on.
func TestGPUOpen(t *testing.T) {
	a, _ := gpuPair(t)
	for name, args := range map[string][]string{
		"file":   {"--processes", "2", "--watch"},
		"apart":  {"--processes", "2", "--nvml", "apart"}, // NVML without libcuda.so.1
		"events": {"--processes", "2", "--nvml", "events"},
		"forked": slices.Concat(watching, []string{"--watching-children", "2"}),
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-")
			before := startGPU(t, a, id, oneGPU, args...)
			refused(t, a, codePrecondition, "gpu-open", "checkpoint", id, "gpu/open:1")
			if name == "file" { // it does nothing with it
				asks(t, a, id, "check")
				return
			}
			unharmed(t, a, id, before)
		})
	}
}

// TestGPUNVML moves a program with a process that has NVML open without CUDA, while four threads of it ask all the time. It is frozen, left running, and restored on a host with other GPUs: no query fails.
func TestGPUNVML(t *testing.T) { watched(t, oneGPU, watching...) }

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
