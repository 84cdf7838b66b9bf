package integration

import (
	"fmt"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestGPURestoreFailure has the driver fail for each process of a container that is restored: it is ended with the driver's words
// and nothing of it is left, or the failure passes and the container runs.
func TestGPURestoreFailure(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := severalSnapshot(t)
	id := name(t)
	cleanup(t, b, id)
	args := []string{"restore", ref, "--name", id, "--plain-http", "--allow", "devices"}
	for _, test := range []struct{ said, words string }{
		{"restore %d error 999", "cuCheckpointProcessRestore: CUDA_ERROR_UNKNOWN"},
		{"restore %d error 1", "cuCheckpointProcessRestore: CUDA_ERROR_INVALID_VALUE"},
		{"unlock %d error 999", "cuCheckpointProcessUnlock: CUDA_ERROR_UNKNOWN"},
	} {
		eachProcess(t, test.said, func(t *testing.T, n int) {
			order(t, b, fmt.Sprintf(test.said, n))
			unchanged(t, b, func() { refusal(t, quietly(b.Cryo(t.Context(), args...)), codeAborted, test.words) })
			carriedOut(t, b)
		})
	}
	for _, said := range []string{
		"state %d exit", "state %d error 999", "restore %d error 2", "restore %d exit", "restore %d exit-after", "unlock %d exit", "unlock %d exit-after",
	} {
		eachProcess(t, said, func(t *testing.T, n int) {
			order(t, b, fmt.Sprintf(said, n))
			unchanged(t, b, func() {
				must(t, b.Cryo(t.Context(), args...))
				carriedOut(t, b)
				goneOn(t, before, unharmed(t, b, id, before))
				remove(t.Context(), b, id)
			})
		})
	}
}

// severalSnapshot is gpuSnapshot of several processes on one GPU.
func severalSnapshot(t *testing.T) (ref string, before lab.Answer) {
	t.Helper()
	flags := append([]string{}, oneGPU...)
	return gpuSnapshot(t, append(flags, forceSeveral...), "--processes", fmt.Sprint(several), "--mib", "2")
}

// TestGPURestoreKilled kills the cryo command, the shim, the helper and CRIU in each step of a restore and for each process. There is
// nothing of the container afterwards, or it runs with its GPU, as it does after the next restore.
func TestGPURestoreKilled(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := severalSnapshot(t)
	other, _ := gpuSnapshot(t, oneGPU)
	id, otherID := name(t), name(t)
	cleanup(t, b, id)
	cleanup(t, b, otherID)
	args := []string{"restore", ref, "--plain-http", "--allow", "devices", "--name", id}
	traced := trace(t, b)
	check := func(t *testing.T, victim string, until func(*background)) {
		t.Helper()
		c := inBackground(t, b, append([]string{"cryo"}, args...)...)
		until(c)
		c.victim(t, b, victim)
		r := c.wait(t)
		if victim == "client" {
			// What a killed one has left is not in the way of another.
			must(t, b.Cryo(t.Context(), "restore", other, "--name", otherID, "--plain-http", "--allow", "devices"))
			remove(t.Context(), b, otherID)
		}
		if victim == "client" && !calledOff(t, b, id) {
			remove(t.Context(), b, id)
		}
		_, status, err := b.Task(t.Context(), id)
		switch {
		case err != nil:
			t.Error(err)
		case status != "" && victim != "shim":
			unharmed(t, b, id, before)
			remove(t.Context(), b, id)
		case r.Code == 0:
			t.Errorf("%s was killed, and the container is %q", victim, status)
		case victim != "client":
			refusal(t, quietly(r), codeAborted, "")
		}
		wantTrace(t, b, traced, abandonedSockets(b))
		if t.Failed() {
			t.Fatalf("exit code %d: %s", r.Code, r.Stderr)
		}
	}
	for _, victim := range []string{"client", "shim", "helper"} {
		for _, call := range []string{"state %d delay 500", "restore %d slow 500", "unlock %d slow 500"} {
			eachProcess(t, victim+" in "+call, func(t *testing.T, n int) {
				order(t, b, fmt.Sprintf(call, n))
				check(t, victim, func(c *background) { c.until(t, "call", obeyed(t, b)) })
			})
		}
	}
	for _, victim := range []string{"client", "shim", "helper", "criu"} {
		t.Run(victim+" in CRIU", func(t *testing.T) {
			check(t, victim, func(c *background) { c.until(t, "CRIU", restoring(t, b)) })
		})
	}
	must(t, b.Cryo(t.Context(), args...))
	goneOn(t, before, unharmed(t, b, id, before))
}

// TestGPURestoreStockFailure has the driver fail while ctr restores a container.
func TestGPURestoreStockFailure(t *testing.T) {
	_, b := gpuPair(t)
	id, ref, before := stockGPU(t, append([]string{"--annotation", "io.cryo.gpu.force=all"}, oneGPU...), "--processes", "2")
	args := []string{"containers", "restore", "--live", "--rw", id, ref}
	traced := trace(t, b)
	for _, said := range []string{"restore %d error 999", "unlock %d error 999"} {
		eachProcess(t, said, func(t *testing.T, n int) {
			order(t, b, fmt.Sprintf(said, n))
			if r := b.Ctr(t.Context(), args...); r.Code == 0 {
				t.Error("restored")
			}
			carriedOut(t, b)
			remove(t.Context(), b, id)
			wantTrace(t, b, traced)
		})
	}
	for _, said := range []string{"restore %d exit", "unlock %d exit-after"} {
		eachProcess(t, said, func(t *testing.T, n int) {
			order(t, b, fmt.Sprintf(said, n))
			must(t, b.Ctr(t.Context(), args...))
			carriedOut(t, b)
			unharmed(t, b, id, before)
			remove(t.Context(), b, id)
			wantTrace(t, b, traced)
		})
	}
}
