package integration

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadTwoRestores runs the same restore several times at once. One succeeds. The others exit since the name is taken, and do not disturb it.
func TestBadTwoRestores(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "16")
	before := trace(t, a)
	for range 2 * breaks {
		id := name(t)
		const commands = 3
		ended := make(chan lab.Result, commands)
		for range commands {
			go func() { ended <- a.Cryo(t.Context(), "restore", ref, "--name", id) }()
		}
		done := 0
		for range commands {
			switch r := <-ended; r.Code {
			case 0:
				done++
			case codeExists:
			default:
				t.Errorf("exit code %d: %s", r.Code, r.Stderr)
			}
		}
		if done != 1 {
			t.Fatalf("%d have done it", done)
		}
		counts(t, a, id)
		remove(t.Context(), a, id)
		wantTrace(t, a, before)
	}
}

// TestBadTwoEnding has two checkpoints end one container at once: one does, and the other says that it did, and not that the container is lost.
func TestBadTwoEnding(t *testing.T) {
	a, _ := pair(t)
	forget(t, a, "bad/ending:1")
	forget(t, a, "bad/ending:2")
	for range breaks {
		id := name(t)
		start(t, a, id, nil, "workload", "count", "--memory", "16")
		refs := []string{"bad/ending:1", "bad/ending:2"}
		ended := make(chan lab.Result, len(refs))
		for _, ref := range refs {
			go func() { ended <- a.Cryo(t.Context(), "checkpoint", id, ref) }()
			time.Sleep(time.Duration(rand.Int64N(int64(400 * time.Millisecond))))
		}
		done := 0
		for range refs {
			switch r := <-ended; r.Code {
			case 0:
				done++
			default:
				refusal(t, r, codePrecondition, "")
			}
		}
		if done != 1 {
			t.Errorf("%d snapshots", done)
		}
		remove(t.Context(), a, id)
		for _, ref := range refs {
			a.Cryo(t.Context(), "rm", ref)
		}
	}
}

// TestBadTwo takes two snapshots of one container at once: one of them is refused, and changes nothing of the other.
func TestBadTwo(t *testing.T) {
	a, _ := pair(t)
	id, first, second := name(t), "bad/two:1", "bad/two:2"
	start(t, a, id, nil, "workload", "count", "--memory", "128")
	forget(t, a, first)
	r := duringDump(t, a, id, first, func(criu int) {
		// A dump may be over sooner than another command begins. One that has ended already is no error here, but below.
		_ = syscall.Kill(criu, syscall.SIGSTOP)
		defer syscall.Kill(criu, syscall.SIGCONT)
		refusal(t, a.Cryo(t.Context(), "checkpoint", id, second, "--leave-running"), codePrecondition, "another checkpoint of this container is under way")
	})
	must(t, r)
	must(t, a.Cryo(t.Context(), "verify", first))
	counts(t, a, id)
}
