package integration

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

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

// TestBadKill kills a container during its checkpoint: it ends soon, and the checkpoint says so.
func TestBadKill(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "bad/kill:1"
	start(t, a, id, nil, "workload", "count", "--memory", "256")
	before := trace(t, a)
	forget(t, a, ref)
	started := time.Now()
	r := duringDump(t, a, id, ref, func(int) {
		started = time.Now()
		must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "KILL", id))
	})
	t.Logf("the checkpoint ended after %s: exit code %d: %s", time.Since(started), r.Code, r.Stderr)
	if r.Code != codeLost {
		t.Errorf("exit code %d", r.Code)
	}
	eventually(t, "end of the container", 30*time.Second, func() bool {
		_, status, err := a.Task(t.Context(), id)
		return err == nil && status == "STOPPED"
	})
	wantTrace(t, a, without(before, nil, []string{"process ", "task ", "cgroup ", "mount "}), "process ", "task ", "cgroup ", "mount ")
}

// TestBadKillEarly kills a container at random instants of a checkpoint, also before anything is dumped: it says that the container is lost.
func TestBadKillEarly(t *testing.T) {
	a, _ := pair(t)
	ref := "bad/kill:2"
	for range breaks {
		id := name(t)
		start(t, a, id, nil, "workload", "count", "--memory", "16")
		ended := make(chan lab.Result, 1)
		go func() { ended <- a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running") }()
		time.Sleep(time.Duration(rand.Int64N(int64(250 * time.Millisecond))))
		must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "KILL", id))
		switch r := <-ended; r.Code {
		case 0:
			must(t, a.Cryo(t.Context(), "verify", ref))
			must(t, a.Cryo(t.Context(), "rm", ref))
		case codePrecondition: // it had ended before the command looked
		default:
			refusal(t, r, codeLost, "lost")
		}
		remove(t.Context(), a, id)
	}
}

// TestBadTwoRestores gives the same restore several times at once: one does it, the others find the name taken and leave the one alone.
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
