package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// keepsPrewarmed is the process that keeps device memory loaded.
var keepsPrewarmed = called("cryo-prewarmed")

// loadedOn are the bytes of device memory that are kept loaded of a snapshot, by GPU.
func loadedOn(t *testing.T, h *lab.Host, ref string) map[string]int64 {
	t.Helper()
	var all []struct {
		Reference string
		GPUs      []struct {
			UUID   string
			Memory int64
		}
	}
	out := must(t, h.Cryo(t.Context(), "prewarm", "ls", "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bytes := map[string]int64{}
	for _, w := range all {
		if w.Reference != ref {
			continue
		}
		for _, g := range w.GPUs {
			bytes[g.UUID] += g.Memory
		}
	}
	return bytes
}

// wantLoaded wants so much to be kept loaded of a snapshot on the first GPU, by what is listed, by processes and by files.
func wantLoaded(t *testing.T, h *lab.Host, ref string, bytes int64) {
	t.Helper()
	if got := loadedOn(t, h, ref); got[h.UUID(0)] != bytes {
		t.Errorf("%v are kept loaded, want %d", got, bytes)
	}
	wantPrewarmed(t, h, min(1, int(bytes)))
}

// wantPrewarmed wants so many processes to keep device memory loaded, and nothing of others.
func wantPrewarmed(t *testing.T, h *lab.Host, want int) {
	t.Helper()
	found := 0
	for _, p := range processes(t, h) {
		if keepsPrewarmed(p) {
			found++
		}
	}
	entries, _ := os.ReadDir(filepath.Join(h.CryoRoot(), "warm.gpu"))
	if found != want || len(entries) != want {
		t.Errorf("%d processes keep memory loaded, in %v", found, entries)
	}
}

// inUse is how much of a host's GPUs is in use, in bytes.
func inUse(t *testing.T, h *lab.Host) (used float64) {
	t.Helper()
	for _, bytes := range inUseOn(t, h) {
		used += bytes
	}
	return used
}

// inUseOn is that of each GPU, by UUID.
func inUseOn(t *testing.T, h *lab.Host) map[string]float64 {
	t.Helper()
	used := map[string]float64{}
	facts := decoded(t, h.Run(t.Context(), "cryo-gpu-keeper", "facts"))
	for _, d := range facts["devices"].([]any) {
		d := d.(map[string]any)
		used[d["uuid"].(string)] = d["memory"].(float64) - d["free"].(float64)
	}
	return used
}

// coldGPU ends what the test has kept loaded.
func coldGPU(t *testing.T, h *lab.Host) {
	t.Helper()
	t.Cleanup(func() {
		h.Cryo(cleanupContext(t), "prewarm", "rm", "--all")
		wantPrewarmed(t, h, 0)
	})
}

// loadless makes the driver refuse to make and to fill memory: a restore succeeds only with what is there.
var loadless = []string{"cuMemCreate * error 2 always", "cuMemcpyHtoDAsync * error 700 always"}

// restoreLoaded restores a snapshot and wants its device memory to have been loaded before, or not.
func restoreLoaded(t *testing.T, h *lab.Host, ref string, want bool, before lab.Answer, flags ...string) (id string) {
	t.Helper()
	id = name(t)
	cleanup(t, h, id)
	r := h.Cryo(t.Context(), append([]string{"restore", ref, "--name", id, "--json", "--allow", "devices"}, flags...)...)
	if got, _ := decoded(t, r)["gpuPrewarmed"].(bool); got != want {
		t.Errorf("prewarmed: %v, want %v: %s%s", got, want, r.Stdout, r.Stderr)
	}
	goneOn(t, before, unharmed(t, h, id, before))
	return id
}

// blocks44 is what processes with "--blocks 3,40" hand over: pieces are multiples of 2 MiB.
const blocks44 = 44 << 20

// TestGPUPrewarmNothing has nothing to load.
func TestGPUPrewarmNothing(t *testing.T) {
	_, b := gpuPair(t)
	coldGPU(t, b)
	ref, _ := gpuSnapshot(t, oneGPU, "--blocks", "3")
	refusal(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref), codePrecondition, "there is nothing to keep loaded")
	if all := warm(t, b); len(all) != 0 {
		t.Errorf("prewarmed are %v", all)
	}
	for _, flags := range [][]string{{"--gpu", "0=1", ref}, {ref, "--device", "nvidia.com/gpu=0"}, {"--gpu=x", ref}} {
		refusal(t, b.Cryo(t.Context(), append([]string{"prewarm"}, flags...)...), codeUsage, "")
	}
}
