package integration

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

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
			if strings.Contains(r.Stderr, "its snapshot is complete") { // it was killed when it had been let go on
				r.Stdout = ""
				must(t, a.Cryo(t.Context(), "verify", ref))
				must(t, a.Cryo(t.Context(), "rm", ref))
			}
			if at := strings.Index(r.Stderr, "cryo: "); at > 0 {
				r.Stderr = r.Stderr[at:]
			}
			refusal(t, r, codeLost, "lost")
		}
		remove(t.Context(), a, id)
	}
}
