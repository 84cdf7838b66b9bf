package integration

import "testing"

// TestGPUNVMLKeeper is TestGPUNVML with the engine keeper.
func TestGPUNVMLKeeper(t *testing.T) { watched(t, handing, watching...) }

// TestGPUNVMLBeside moves a process that has NVML open beside CUDA, and children that it has forked, in which NVML is not initialised, by both engines.
func TestGPUNVMLBeside(t *testing.T) {
	for engine, flags := range map[string][]string{"driver": oneGPU, "keeper": handing} {
		t.Run(engine, func(t *testing.T) { watched(t, flags, "--nvml", "plain", "--watching-children", "2") })
	}
}

// TestGPUNVMLOnly moves a container in which nothing uses CUDA, as that of a monitor, by both engines.
func TestGPUNVMLOnly(t *testing.T) {
	for engine, flags := range map[string][]string{"driver": oneGPU, "keeper": handing} {
		t.Run(engine, func(t *testing.T) { watched(t, flags, "--no-cuda", "--nvml", "plain") })
	}
}

// TestGPUNVMLUndone has the driver fail when NVML's device files are closed, and CRIU end: all run on, and so they do where the helper dies meanwhile.
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
		switch r.Code {
		case 0:
		case codeLost: // CRIU's code was just entering a process, see TestBadKilledDump
			id = name(t)
			before = startGPU(t, a, id, handing, watching...)
		default:
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
