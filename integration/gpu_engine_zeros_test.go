package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// dumped is how many bytes of memory a dump that is held has in files.
func dumped(t *testing.T, h *lab.Host) (bytes int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.CryoRoot(), "work/*/images/pages-*.img"))
	if err != nil || len(files) == 0 {
		t.Fatal("no pages", err)
	}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		bytes += st.Size()
	}
	return bytes
}

// TestGPUKeeperEngineZeros has the driver leave memory that is mostly zeros, as it does with what contexts have on devices. With the library CRIU has little
// of it to take, whichever engine moved the rest, and the driver finds all as it was, in the container that goes on and in the restored one.
func TestGPUKeeperEngineZeros(t *testing.T) {
	const mib = 192
	a, _ := gpuPair(t)
	if _, err := os.Stat("/dev/userfaultfd"); err != nil {
		t.Skip(err)
	}
	for title, test := range map[string]struct {
		flags, checkpoint []string
		least, most       int64 // MiB in the dump
	}{
		"keeper":              {handing, nil, mib / 16, mib * 3 / 4},
		"driver with library": {handing, []string{"--gpu-engine", "driver"}, mib / 16, mib * 3 / 4},
		"without library":     {oneGPU, nil, mib, 2 * mib},
	} {
		t.Run(title, func(t *testing.T) {
			id, ref := name(t), "gpu/zeros:1"
			before := startGPU(t, a, id, slices.Concat(test.flags, []string{"--env", "FAKECUDA_CONTEXT_MIB=192"}, pagesInFiles(t, a)), "--blocks", blocks)
			forget(t, a, ref)
			for _, words := range [][]string{{"region", "written", "24"}, {"region", "still", "24"}} {
				if answer, err := a.Ask(t.Context(), id, words...); err != nil || !answer.OK {
					t.Fatalf("%s: %+v, %v", words, answer, err)
				}
			}
			b := inBackground(t, a, slices.Concat([]string{"cryo", "checkpoint", id, ref, "--leave-running"}, test.checkpoint)...)
			b.untilHeld(t, a)
			if bytes := dumped(t, a); bytes < test.least<<20 || bytes > test.most<<20 {
				t.Errorf("the dump has %d MiB, want %d to %d", bytes>>20, test.least, test.most)
			} else {
				t.Logf("the dump has %d MiB", bytes>>20)
			}
			b.goOn()
			must(t, b.wait(t))
			whole := func() {
				t.Helper()
				unharmed(t, a, id, before)
				if answer, err := a.Ask(t.Context(), id, "regions"); err != nil || !answer.OK {
					t.Errorf("%+v, %v", answer, err)
				}
			}
			whole()
			remove(t.Context(), a, id)
			must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
			whole()
			must(t, a.Cryo(t.Context(), slices.Concat([]string{"checkpoint", id, ref, "--leave-running"}, test.checkpoint)...))
			whole()
		})
	}
	alone(t, a)
}
