package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// localThreads is for how many threads a device has stacks in each context of a program with localMemory.
const localThreads = 4096

var localMemory = []string{"--env", fmt.Sprintf("FAKECUDA_LOCAL_THREADS=%d", localThreads)}

// limited fails the test unless each process's contexts have the limits that they should, bytes of a stack.
func limited(t *testing.T, a lab.Answer, want string) {
	t.Helper()
	processes, _ := a.State["processes"].([]any)
	for _, p := range processes {
		p, _ := p.(map[string]any)
		if got := fmt.Sprint(p["limits"]); got != want {
			t.Errorf("limits of %s bytes, want %s", got, want)
		}
	}
	if len(processes) == 0 {
		t.Errorf("no processes in %+v", a)
	}
}

// TestGPUKeeperEngineLimits has contexts with different limits: the driver saves little local memory of either, and each has afterwards what it had,
// in a container that is left running, in a restored one, and in one that is restored from the snapshot of that.
func TestGPUKeeperEngineLimits(t *testing.T) {
	const counter, lowered, limits = 4096, 256, "[2048 8192]"
	a, b := gpuPair(t)
	id := name(t)
	before := startGPU(t, a, id, slices.Concat(bothGPUs, []string{"--annotation", "io.cryo.gpu.engine=keeper"}, localMemory), "--blocks", "3,4")
	for _, words := range [][]string{{"limit", "0", "2048"}, {"limit", "1", "8192"}} {
		if answer, err := a.Ask(t.Context(), id, words...); err != nil || !answer.OK {
			t.Fatalf("%s: %+v, %v", words, answer, err)
		}
	}
	unchanged := func(h *lab.Host) {
		t.Helper()
		now := unharmed(t, h, id, before)
		limited(t, now, limits)
		p, _ := now.State["processes"].([]any)[0].(map[string]any)
		if saved, _ := p["saved"].(float64); saved != 2*lowered*localThreads+counter {
			t.Errorf("the driver saved %.0f bytes", saved)
		}
	}
	from, to := a, b
	for i, leave := range []bool{true, true, false, true} {
		ref := shared.registry.Reference(fmt.Sprintf("gpu/%s:%d", id, i))
		for _, h := range []*lab.Host{a, b} {
			forget(t, h, ref)
		}
		command := []string{"checkpoint", id, ref, "--force", "gpu-peer"}
		if leave {
			command = append(command, "--leave-running")
		}
		must(t, from.Cryo(t.Context(), command...))
		if leave {
			unchanged(from)
		}
		if i == 0 {
			continue
		}
		remove(t.Context(), from, id)
		must(t, from.Cryo(t.Context(), "push", ref, "--plain-http"))
		cleanup(t, to, id)
		must(t, to.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
		unchanged(to)
		from, to = to, from
	}
	alone(t, a)
	alone(t, b)
}

// TestGPUKeeperEngineLimitsFailures has a checkpoint fail at each step, or come to nothing: the container runs on with the limit that it had.
func TestGPUKeeperEngineLimitsFailures(t *testing.T) {
	const limits = "[8192]"
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/limits:1"
	ownOrder(t, a)
	before := startGPU(t, a, id, slices.Concat(heeding, localMemory), "--blocks", "3,4")
	if answer, err := a.Ask(t.Context(), id, "limit", "0", "8192"); err != nil || !answer.OK {
		t.Fatalf("%+v, %v", answer, err)
	}
	forget(t, a, ref)
	traced := trace(t, a)
	for _, test := range []struct {
		own    bool // by the library, in the container
		orders []string
	}{
		{true, []string{"cuMemUnmap 1 error 999"}},
		{true, []string{"cuCtxGetLimit 1 error 801"}},
		{true, []string{"cuCtxSetLimit 1 error 801"}},
		{true, []string{"cuCtxSetLimit 1 pass", "cuCtxSetLimit 1 error 2"}},
		{true, []string{"cuCtxSetLimit 1 pass", "cuCtxSetLimit 1 error 999"}},
		{true, []string{"stack 1 pass", "stack 1 error 512"}},
		{true, []string{"cuMemImportFromShareableHandle 1 error 999"}},
		{false, []string{"lock 1 error 600"}},
		{false, []string{"lock 1 error 999"}},
		{false, []string{"checkpoint 1 error 999"}},
		{false, []string{"restore 1 error 2"}},
	} {
		t.Run(fmt.Sprint(test.orders), func(t *testing.T) {
			if test.own {
				ownOrder(t, a, test.orders...)
			} else {
				order(t, a, test.orders...)
			}
			a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running") // with or without a snapshot
			limited(t, unharmed(t, a, id, before), limits)
			if err := a.Order(); err != nil {
				t.Fatal(err)
			}
			tidy(t, a, ref, traced)
		})
	}
	for _, m := range []moment{lets, locks, saves, loads, takesBack} {
		t.Run(fmt.Sprintf("called off at %s", m), func(t *testing.T) {
			come := m.come(t, a)
			killed(t, a, id, ref, "client", func(b *background) { b.until(t, "call", come) })
			limited(t, unharmed(t, a, id, before), limits)
			if err := a.Order(); err != nil {
				t.Fatal(err)
			}
			tidy(t, a, ref, traced)
		})
	}
	t.Run("criu killed", func(t *testing.T) {
		refusal(t, killed(t, a, id, ref, "criu", func(b *background) { b.untilDumping(t, a) }), codeAborted, "the container runs on")
		limited(t, unharmed(t, a, id, before), limits)
		tidy(t, a, ref, traced)
	})
	// It cannot be given what it had: it is ended, with the reason, and does not go on with less.
	t.Run("lost", func(t *testing.T) {
		ownOrder(t, a, "cuCtxSetLimit 1 pass", "cuCtxSetLimit 1 error 999 always")
		if r := a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"); r.Code != codeLost || !strings.Contains(r.Stderr, "CUDA_ERROR_UNKNOWN") {
			t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
		}
		gone(t, a, id)
	})
	alone(t, a)
}
