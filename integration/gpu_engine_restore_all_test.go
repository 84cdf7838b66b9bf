package integration

import (
	"slices"
	"testing"
)

// TestGPUKeeperEngineRestoreFailures has a restore fail where it takes, fills and gives back device memory, and kills those that take part: nothing of
// the container is left, and the reason is told. The next restore succeeds.
func TestGPUKeeperEngineRestoreFailures(t *testing.T) {
	_, b := gpuPair(t)
	ownOrder(t, b)
	ref, before := gpuSnapshot(t, heeding, "--blocks", "3,40")
	id := name(t)
	cleanup(t, b, id)
	args := []string{"restore", ref, "--name", id, "--plain-http", "--allow", "devices"}
	fails := func(t *testing.T, code int, words string) {
		t.Helper()
		unchanged(t, b, func() { refusal(t, quietly(b.Cryo(t.Context(), args...)), code, words) })
		alone(t, b)
	}
	for _, test := range []struct {
		said  string
		own   bool
		words string
	}{
		{"cuMemCreate 1 error 2", false, "CUDA_ERROR_OUT_OF_MEMORY"},
		{"cuMemExportToShareableHandle 1 error 999", false, "CUDA_ERROR_UNKNOWN"},
		{"cuMemcpyHtoDAsync 1 error 700", false, "cuMemcpyHtoDAsync"},
		{"cuMemImportFromShareableHandle 1 error 1 always", true, "CUDA_ERROR_INVALID_VALUE"},
		{"cuCtxSetLimit 1 error 999 always", true, "CUDA_ERROR_UNKNOWN"},
		{"restore 1 error 999", false, "cuCheckpointProcessRestore: CUDA_ERROR_UNKNOWN"},
	} {
		t.Run(test.said, func(t *testing.T) {
			if test.own {
				ownOrder(t, b, test.said)
			} else {
				order(t, b, test.said)
			}
			fails(t, codeAborted, test.words)
		})
	}
	t.Run("no room", func(t *testing.T) {
		small := gpusOfB
		small.Devices = slices.Clone(gpusOfB.Devices)
		small.Devices[0].Memory = 32 << 20
		setGPUs(t, b, small, gpusOfB)
		fails(t, codeMisfit, "gpu-memory")
	})
	for victim, is := range map[string]func(process) bool{"keeper": holding, "restore process": called("cryo-restore"), "helper": serving} {
		t.Run(victim+" killed", func(t *testing.T) {
			order(t, b, "cuMemcpyHtoDAsync 1 delay 1500")
			unchanged(t, b, func() {
				c := inBackground(t, b, append([]string{"cryo"}, args...)...)
				c.until(t, "call", obeyed(t, b))
				pid := find(t, b, is)
				if pid == 0 {
					t.Fatal("there is none")
				}
				kill(t, pid)
				r := c.wait(t)
				if victim == "keeper" {
					refusal(t, quietly(r), codeAborted, "")
					return
				}
				if victim == "restore process" {
					refusal(t, quietly(r), codeUnavailable, "")
					return
				}
				must(t, r) // another is asked, or nobody needs it
				unharmed(t, b, id, before)
				remove(t.Context(), b, id)
			})
			alone(t, b)
		})
	}
	must(t, b.Cryo(t.Context(), args...))
	goneOn(t, before, unharmed(t, b, id, before))
	alone(t, b)
}
