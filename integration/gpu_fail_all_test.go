package integration

import (
	"fmt"
	"strings"
	"testing"
)

// codeUnsupported is of "cryo help exit-codes", as those of bad_refusal_test.go.
const codeUnsupported = 13

// eachProcess repeats a test for each process of a container, whose number takes the place of N in the order.
func eachProcess(t *testing.T, call string, do func(t *testing.T, n int)) {
	for n := 1; n <= several; n++ {
		t.Run(fmt.Sprintf("%s of process %d", call, n), func(t *testing.T) { do(t, n) })
	}
}

// TestGPUFailure has the driver fail for each process on the way down: nothing has changed, and the container uses its GPU.
func TestGPUFailure(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/failure:1"
	before := startSeveral(t, a, id)
	forget(t, a, ref)
	for _, test := range []struct {
		call, action string
		code         int
		words        string
	}{
		{"init", "error 999", codePrecondition, "cuInit"},
		{"init", "exit", codeAborted, "keeper"},
		{"lock", "error 999", codeAborted, "cuCheckpointProcessLock: CUDA_ERROR_UNKNOWN"},
		{"lock", "exit", codeAborted, "keeper"},
		{"lock", "exit-after", codeAborted, "keeper"},
		{"checkpoint", "error 2", codeAborted, "cuCheckpointProcessCheckpoint: CUDA_ERROR_OUT_OF_MEMORY"},
		{"checkpoint", "error 801", codeUnsupported, "managed memory"},
		{"checkpoint", "exit", codeAborted, "keeper"},
		{"checkpoint", "exit-after", codeAborted, "keeper"},
		{"state", "exit", codeAborted, "keeper"},
		{"state", "exit-after", codeAborted, "keeper"},
	} {
		for n := 1; n <= several; n++ {
			which := fmt.Sprint(n)
			if test.call == "init" {
				which = "*"
			}
			said := test.call + " " + which + " " + test.action
			t.Run(said, func(t *testing.T) {
				order(t, a, said)
				refused(t, a, test.code, test.words, "checkpoint", id, ref, "--leave-running")
				carriedOut(t, a)
				unharmed(t, a, id, before)
			})
			if which == "*" {
				break
			}
		}
	}
	// A process that is starting has no state for a moment, so it is asked for again: this one never has.
	eachProcess(t, "state, always", func(t *testing.T, n int) {
		order(t, a, fmt.Sprintf("state %d error 999 always", n))
		refused(t, a, codeAborted, "does not tell its state", "checkpoint", id, ref, "--leave-running")
		order(t, a)
		unharmed(t, a, id, before)
	})
	// Several processes are locked in several attempts: this one never is.
	eachProcess(t, "lock, always", func(t *testing.T, n int) {
		order(t, a, fmt.Sprintf("lock %d error 600 always", n))
		refused(t, a, codePrecondition, "work still ran", "checkpoint", id, ref, "--leave-running", "--gpu-timeout", "1s")
		order(t, a)
		unharmed(t, a, id, before)
	})
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	unharmed(t, a, id, before)
}

// TestGPUFailureMended has the driver fail for each process in a way that is made good: there is a snapshot, and the container
// uses its GPU.
func TestGPUFailureMended(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/mended:1"
	before := startSeveral(t, a, id)
	forget(t, a, ref)
	for _, said := range []string{
		"state %d error 999", "lock %d error 600", "restore %d error 2", "restore %d exit", "restore %d exit-after", "unlock %d exit", "unlock %d exit-after", "unlock %d error 401",
	} {
		eachProcess(t, said, func(t *testing.T, n int) {
			order(t, a, fmt.Sprintf(said, n))
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
			carriedOut(t, a)
			unharmed(t, a, id, before)
			must(t, a.Cryo(t.Context(), "rm", ref))
		})
	}
	// Also of what a failure on the way down undoes.
	order(t, a, "checkpoint 2 error 999", "restore 1 exit", "unlock 2 exit")
	refused(t, a, codeAborted, "CUDA_ERROR_UNKNOWN", "checkpoint", id, ref, "--leave-running")
	carriedOut(t, a)
	unharmed(t, a, id, before)
}

// TestGPUFailureLost has the way back fail for good: the container is ended with the driver's words, and nothing of it is left but the snapshot where that is complete.
func TestGPUFailureLost(t *testing.T) {
	a, _ := gpuPair(t)
	before := trace(t, a)
	for _, test := range []struct{ first, said, words string }{
		{"", "restore %d error 999", "cuCheckpointProcessRestore: CUDA_ERROR_UNKNOWN"},
		{"", "unlock %d error 999", "cuCheckpointProcessUnlock: CUDA_ERROR_UNKNOWN"},
		{"checkpoint 2 error 801", "unlock %d error 999", "cuCheckpointProcessUnlock: CUDA_ERROR_UNKNOWN"},
	} {
		eachProcess(t, test.first+test.said, func(t *testing.T, n int) {
			id, ref := name(t), "gpu/lost:1"
			startSeveral(t, a, id)
			order(t, a, test.first, fmt.Sprintf(test.said, n))
			r := a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running")
			if complete := test.first == ""; r.Code != codeLost || !strings.Contains(r.Stderr, test.words) || strings.Contains(r.Stderr, "its snapshot is complete") != complete {
				t.Errorf("exit code %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			if strings.Contains(r.Stderr, "pipe") {
				t.Errorf("says more than the reason:\n%s", r.Stderr)
			}
			carriedOut(t, a)
			gone(t, a, id)
			remove(t.Context(), a, id)
			a.Cryo(t.Context(), "rm", ref)
			wantTrace(t, a, before)
		})
	}
}

// TestGPUProcessEnds has the driver take a process with it on the way back, with an error or reporting success, or with its last call. The checkpoint does not report a running
// container, the other process goes on, and the snapshot stays: it is complete, and all that there is of the process.
func TestGPUProcessEnds(t *testing.T) {
	a, _ := gpuPair(t)
	for _, said := range []string{"restore %d crash 999", "restore %d crash 0", "unlock %d crash 0"} {
		eachProcess(t, said, func(t *testing.T, n int) {
			id, ref := name(t), "gpu/ends:1"
			before := startSeveral(t, a, id)
			forget(t, a, ref)
			order(t, a, fmt.Sprintf(said, n))
			r := a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running")
			if r.Code != codeLost || !strings.Contains(r.Stderr, "(fakeapp)") || !strings.Contains(r.Stderr, "hint: its snapshot is complete: cryo restore "+ref) {
				t.Errorf("exit code %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			carriedOut(t, a)
			remove(t.Context(), a, id)
			must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
			goneOn(t, before, unharmed(t, a, id, before))
			remove(t.Context(), a, id)
		})
	}
}
