package integration

import (
	"slices"
	"testing"
)

// TestGPUKeeperLate: beside a program that was left running, whose kernels do not give way, the keeper makes no context before the program stands still. Beside one that has not stood it is there before.
func TestGPUKeeperLate(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	ref := "gpu/" + id + ":1"
	forget(t, a, ref)
	before := startGPU(t, a, id, slices.Concat(handing, heeding), "--blocks", blocks)
	for round, early := range []bool{true, false, false} {
		order(t, a, "cuModuleLoadData * pass")          // by the keeper, when it has made a context
		ownOrder(t, a, "cuCtxSynchronize * delay 1500") // the program stands still 1.5 s later
		if _, err := a.Ask(t.Context(), id, "launch", "1000"); err != nil {
			t.Fatal(err)
		}
		b := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running")
		b.until(t, "the gate to be closed", func() bool { done, err := a.OwnOrdersDone(); return err == nil && done > 0 })
		if obeyed(t, a)() != early {
			t.Errorf("round %d: the keeper has a context while the program's kernel runs: %v, want %v", round, !early, early)
		}
		must(t, b.wait(t))
		if !obeyed(t, a)() {
			t.Errorf("round %d: the keeper has not made a context", round)
		}
		unharmed(t, a, id, before)
		must(t, a.Cryo(t.Context(), "rm", ref))
	}
	alone(t, a)
}

// TestGPUKeeperLooksBefore: once a program goes on, of which a copy is being sent, the keeper runs no kernel on its devices.
func TestGPUKeeperLooksBefore(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	ref := "gpu/" + id + ":1"
	forget(t, a, ref)
	before := startGPU(t, a, id, slices.Concat(handing, pagesInFiles(t, a)), "--blocks", blocks)
	b := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running")
	b.untilHeld(t, a)
	order(t, a, "cryo_written * error 719")
	b.goOn()
	must(t, b.wait(t))
	if obeyed(t, a)() {
		t.Error("the keeper has run a kernel")
	}
	handedOver(t, a, ref, 8<<20)
	unharmed(t, a, id, before)
	alone(t, a)
}
