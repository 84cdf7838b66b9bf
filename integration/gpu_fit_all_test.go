package integration

import (
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestGPUMisfit has hosts that a snapshot does not fit: cryo says by which rule, and starts nothing.
func TestGPUMisfit(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, oneGPU, "--mib", "3")
	for rule, gpus := range misfits {
		t.Run(rule, func(t *testing.T) {
			setGPUs(t, b, gpus, gpusOfB)
			misfit(t, b, rule, ref)
		})
	}
	id := name(t)
	cleanup(t, b, id)
	if out := must(t, b.Cryo(t.Context(), "inspect", ref, "--check")).Stdout; !strings.Contains(out, "580.173.01") {
		t.Errorf("no warning that the driver's version is another:\n%s", out)
	}
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	unharmed(t, b, id, before)
}

// TestGPUMisfitCount offers fewer GPUs than a snapshot has, and more; and names that are wrong.
func TestGPUMisfitCount(t *testing.T) {
	_, b := gpuPair(t)
	two, _ := gpuSnapshot(t, bothGPUs)
	misfit(t, b, "gpu-count", two, "--device", "nvidia.com/gpu=0")
	one, _ := gpuSnapshot(t, oneGPU)
	misfit(t, b, "gpu-count", one, "--device", "nvidia.com/gpu=all")
	misfit(t, b, "gpu-missing", one, "--device", "nvidia.com/gpu=7")
	for words, flags := range map[string][]string{
		"no GPU 3":                      {"--gpu", "3=0"},
		"this host has no GPU 5":        {"--gpu", "0=5"},
		"does not get GPU 1":            {"--gpu", "0=1"},
		"neither the number of":         {"--gpu", "0=x"},
		"VENDOR/CLASS=NAME":             {"--device", "gpu0"},
		"that GPU is named twice":       {"--gpu", "0=0", "--gpu", "0=0"},
		"has no GPU " + b.UUID(0) + ",": {"--gpu", b.UUID(0) + "=0"},
	} {
		t.Run(words, func(t *testing.T) {
			refused(t, b, codeUsage, words, append([]string{"restore", one, "--name", "misfit", "--plain-http", "--allow", "devices"}, flags...)...)
		})
	}
	setGPUs(t, b, lab.GPUs{UVM: 508, Devices: []lab.GPU{{Minor: 4}}}, gpusOfB)
	misfit(t, b, "gpu-missing", two)
}

// TestGPUMisfitStock restores with ctr where the container does not fit: the shim says why, and leaves nothing.
func TestGPUMisfitStock(t *testing.T) {
	_, b := gpuPair(t)
	id, ref, before := stockGPU(t, oneGPU, "--mib", "3")
	for rule, gpus := range misfits {
		t.Run(rule, func(t *testing.T) {
			setGPUs(t, b, gpus, gpusOfB)
			traced := trace(t, b)
			r := b.Ctr(t.Context(), "containers", "restore", "--live", "--rw", id, ref)
			words := "(" + rule + ")"
			if rule == "gpu-missing" {
				words = "nvidia.com/gpu=0"
			}
			if r.Code == 0 || !strings.Contains(r.Stderr, words) || !strings.Contains(r.Stderr, "hint: ") {
				t.Errorf("exit code %d, want %q and a hint:\n%s", r.Code, words, r.Stderr)
			}
			remove(t.Context(), b, id)
			wantTrace(t, b, traced)
		})
	}
	must(t, b.Ctr(t.Context(), "containers", "restore", "--live", "--rw", id, ref))
	unharmed(t, b, id, before)
}

// TestGPUMisfitShim has snapshots that are here already: the command leaves the driver to the shim, and says by which rule that has refused the container as ever.
func TestGPUMisfitShim(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, oneGPU, "--mib", "3")
	must(t, b.Cryo(t.Context(), "pull", ref, "--plain-http"))
	args := []string{"restore", ref, "--allow", "devices", "--name"}
	for rule, gpus := range misfits {
		t.Run(rule, func(t *testing.T) {
			setGPUs(t, b, gpus, gpusOfB)
			refused(t, b, codeMisfit, "\n  "+rule+": ", append(args, "misfit")...)
		})
	}
	setGPUs(t, b, lab.GPUs{UVM: 508, Devices: []lab.GPU{{Minor: 4, Memory: 4 << 20}, {Minor: 1}}}, gpusOfB)
	id := name(t)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), append(args, id)...))
	unharmed(t, b, id, before)
}
