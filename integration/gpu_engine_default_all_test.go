package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// TestGPUDefaultEngine is about hosts without a configuration: containers hand their memory over, but for those that share their PID namespace, and all where the
// host has no library; of these the driver saves it.
func TestGPUDefaultEngine(t *testing.T) {
	for where, test := range map[string]struct {
		env     []string
		why     string // nothing is handed over
		refused string // a container that asks for the engine
	}{
		"with the library":    {},
		"without the library": {env: []string{library.Variable + "=/nowhere/" + library.File}, why: "the host has no " + library.File, refused: "make install"},
	} {
		t.Run(where, func(t *testing.T) {
			h := newHost(t, "gpu-default", lab.HostOptions{GPUs: &gpusOfA, Env: test.env})
			if err := h.ImportGPU(t.Context()); err != nil {
				t.Fatal(err)
			}
			run := func(id string, flags ...string) lab.Answer {
				startImage(t, h, lab.GPUImageName, id, append(flags, oneGPU...), "/fake/fakeapp", "--quiet", "--blocks", "32")
				return await(t, h, id)
			}
			id, ref := name(t), "gpu/default:1"
			before := run(id)
			must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
			if bytes, why := pieces(t, h, ref); (bytes == 32<<20) != (test.why == "") || !strings.Contains(why, test.why) {
				t.Errorf("%.0f bytes were handed over, and the reason is %q", bytes, why)
			}
			remove(t.Context(), h, id)
			must(t, h.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
			unharmed(t, h, id, before)

			pid, _, err := h.Task(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			shares := []string{"--with-ns", fmt.Sprintf("pid:/proc/%d/ns/pid", pid)}
			with := name(t)
			run(with, shares...)
			if has := hasLibrary(t, h, with); has {
				t.Error("a container that shares its PID namespace has the library")
			}
			asks := name(t)
			cleanup(t, h, asks)
			r := h.Ctr(t.Context(), slices.Concat([]string{"run", "--detach", "--runtime", cryoRuntime}, shares, handing, []string{lab.GPUImageName, asks, "/fake/fakeapp", "--quiet"})...)
			if test.refused != "" {
				if r.Code == 0 || !strings.Contains(r.Stderr, test.refused) {
					t.Errorf("one that asks for the engine: exit status %d, %s", r.Code, r.Stderr)
				}
				return
			}
			must(t, r)
			await(t, h, asks)
			if !hasLibrary(t, h, asks) {
				t.Error("a container that shares its PID namespace and asks for the engine has no library")
			}
		})
	}
}

// hasLibrary reports whether a container's first process has loaded the library.
func hasLibrary(t *testing.T, h *lab.Host, id string) bool {
	t.Helper()
	pid, _, err := h.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(read(t, fmt.Sprintf("/proc/%d/maps", pid)), library.File)
}
