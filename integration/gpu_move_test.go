package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// bothGPUs gives a container two GPUs, which a process of it uses without peer access.
var bothGPUs = []string{"--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1", "--annotation", "io.cryo.gpu.force=gpu-peer"}

// plainGPU gives a container the GPU with device node /dev/nvidia1, by a list of devices and mounts.
func plainGPU(h *lab.Host) (flags []string) {
	for _, node := range []string{"nvidia1", "nvidiactl", "nvidia-uvm"} {
		flags = append(flags, "--device", "/dev/"+node)
	}
	return append(flags,
		"--mount", "type=bind,src="+h.DriverLibrary()+",dst=/usr/lib64/libcuda.so.1,options=rbind:ro",
		"--mount", "type=bind,src="+h.NVMLLibrary()+",dst=/usr/lib64/libnvidia-ml.so.1,options=rbind:ro",
		"--mount", "type=bind,src="+lab.GPUDir+",dst="+lab.GPUMount+",options=rbind:rw")
}

// moved fails the test unless each GPU of one host has become the one of another that is wanted.
func moved(t *testing.T, before, after lab.Answer, from, to *lab.Host, want []int) {
	t.Helper()
	old, now := devicesOf(t, before), devicesOf(t, after)
	if len(old) != len(now) {
		t.Fatalf("was on GPUs %v, is on %v", old, now)
	}
	for i := range old {
		for index, becomes := range want {
			if old[i] == from.UUID(index) && (becomes < 0 || now[i] != to.UUID(becomes)) {
				t.Errorf("GPU %d, %s, became %s, want GPU %d", index, old[i], now[i], becomes)
			}
		}
		if now[i] != to.UUID(0) && now[i] != to.UUID(1) {
			t.Errorf("on %s, which is no GPU of host %s", now[i], to.Name)
		}
	}
}

// stockGPU takes a checkpoint of a new fakeapp with ctr on host a, which goes on, and brings it to host b as an archive.
func stockGPU(t *testing.T, flags []string, args ...string) (id, ref string, before lab.Answer) {
	t.Helper()
	a, b := gpuPair(t)
	id = name(t)
	ref = "cryo.test/" + id
	before = startGPU(t, a, id, flags, args...)
	cleanup(t, b, id)
	t.Cleanup(func() {
		for _, h := range []*lab.Host{a, b} {
			h.Ctr(cleanupContext(t), "images", "delete", ref)
			clearStockTemporary(t, h)
		}
	})
	must(t, a.Ctr(t.Context(), "containers", "checkpoint", "--task", "--rw", "--image", id, ref))
	unharmed(t, a, id, before)
	remove(t.Context(), a, id)
	archive := filepath.Join(t.TempDir(), "checkpoint.tar")
	must(t, a.Ctr(t.Context(), "images", "export", "--local", "--skip-manifest-json", archive, ref)) // not by a stream, which ctr may leave before its end
	must(t, b.Ctr(t.Context(), "images", "import", "--no-unpack", archive))
	return id, ref, before
}

// TestGPUMoveSelf restores where the container was, with no GPU moved, and where another container of the host uses the GPU.
func TestGPUMoveSelf(t *testing.T) {
	a, _ := gpuPair(t)
	other := name(t)
	unharmedOther := startGPU(t, a, other, oneGPU)
	id, ref := name(t), "gpu/self:1"
	before := startGPU(t, a, id, oneGPU)
	forget(t, a, ref)
	r := must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	if !strings.Contains(r.Stdout, "GPU") {
		t.Errorf("says nothing of GPUs:\n%s", r.Stdout)
	}
	remove(t.Context(), a, id)
	refused(t, a, codeDenied, "the CDI device nvidia.com/gpu=0", "restore", ref, "--name", id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--device", "nvidia.com/gpu=0"))
	goneOn(t, before, unharmed(t, a, id, before))
	unharmed(t, a, other, unharmedOther)
}
