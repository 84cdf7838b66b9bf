package integration

import (
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// breaks is how often each command is broken off with each signal, and each process killed. CRYO_BREAKS has it be another number. Random instants in
// great number are the matter of integration/chaos.
var breaks = 4

func init() {
	if n, err := strconv.Atoi(os.Getenv("CRYO_BREAKS")); err == nil {
		breaks = n
	}
}

// breakOff runs cryo some times and sends it a signal at a random moment of the time that it takes. after is called with
// each result; it wants the host in order and prepares for the next. The moments are spread, and printed where
// something is wrong.
func breakOff(t *testing.T, h *lab.Host, takes time.Duration, after func(t *testing.T, r lab.Result), args ...string) {
	t.Helper()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		codes := map[int]int{}
		for i := range breaks {
			at := time.Duration((float64(i) + rand.Float64()) / float64(breaks) * 1.1 * float64(takes))
			r := broken(t, h, at, sig, args...)
			codes[r.Code]++
			switch {
			case r.Code == 0:
			case sig == syscall.SIGINT && r.Code == codeInterrupted:
			case sig == syscall.SIGKILL && r.Code == codeKilled:
			default:
				t.Errorf("exit code %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			after(t, r)
			if t.Failed() {
				t.Fatalf("%s after %s:\n%s%s", sig, at, r.Stdout, r.Stderr)
			}
		}
		t.Logf("%s in %s: %v", sig, takes, codes)
	}
}

// swept runs a command of no effect, which clears away what killed ones left.
func swept(t *testing.T, h *lab.Host) {
	t.Helper()
	if r := h.Cryo(t.Context(), "push", "bad/nothing:1"); r.Code != codeNotFound {
		t.Errorf("push of nothing: exit code %d: %s", r.Code, r.Stderr)
	}
}

// TestBadInterruptCheckpoint breaks off checkpoints. The container runs on, and there is a whole snapshot or none.
func TestBadInterruptCheckpoint(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "bad/interrupt:1"
	start(t, a, id, nil, "workload", "count", "--memory", "64")
	forget(t, a, ref)
	args := []string{"checkpoint", id, ref, "--leave-running", "--segment-size", "8MiB"}
	takes := must(t, a.Cryo(t.Context(), args...)).Elapsed
	must(t, a.Cryo(t.Context(), "rm", ref))
	before := trace(t, a)
	breakOff(t, a, takes, func(t *testing.T, r lab.Result) {
		counts(t, a, id)
		swept(t, a)
		switch verified := a.Cryo(t.Context(), "verify", "--pull", "never", ref).Code; {
		case verified == 0:
			must(t, a.Cryo(t.Context(), "rm", ref))
		case verified != codeNotFound || r.Code == 0:
			t.Errorf("verify: exit code %d", verified)
		}
		if r.Code == codeKilled {
			wantTrace(t, a, before, "blob ", "lease ", "snapshot cryo-view-")
		} else {
			wantTrace(t, a, before)
		}
		// What a killed one left in containerd goes with the next, and blobs with the next that is removed.
		must(t, a.Cryo(t.Context(), args...))
		must(t, a.Cryo(t.Context(), "rm", ref))
		wantTrace(t, a, before)
	}, args...)
}

// TestBadInterruptEnd breaks off checkpoints that end their container: it runs on, or there is a whole snapshot.
func TestBadInterruptEnd(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "bad/interrupt:2"
	forget(t, a, ref)
	takes := 500 * time.Millisecond
	again := func() {
		start(t, a, id, nil, "workload", "count", "--memory", "32")
	}
	again()
	args := []string{"checkpoint", id, ref}
	breakOff(t, a, takes, func(t *testing.T, r lab.Result) {
		swept(t, a)
		verified := a.Cryo(t.Context(), "verify", "--pull", "never", ref).Code
		if verified != 0 && (verified != codeNotFound || r.Code == 0) {
			t.Errorf("verify: exit code %d", verified)
		}
		// An end that was ordered comes soon, though not always before the command's own.
		if r.Code != 0 {
			time.Sleep(time.Second)
		}
		_, status, err := a.Task(t.Context(), id)
		switch {
		case err != nil:
			t.Error(err)
		case status == "STOPPED" && verified == 0 && r.Code != codeInterrupted:
			remove(t.Context(), a, id)
			again()
		case status != "RUNNING" || r.Code == 0:
			t.Errorf("the task is %q after the checkpoint, verify: exit code %d", status, verified)
		default:
			counts(t, a, id)
		}
		a.Cryo(t.Context(), "rm", ref)
	}, args...)
}

// TestBadInterruptPush breaks off pushes: the registry has no tag, or all of the snapshot.
func TestBadInterruptPush(t *testing.T) {
	a, b := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "64")
	to := shared.registry.Reference("bad/" + name(t) + ":1")
	forget(t, b, to)
	before := trace(t, a)
	breakOff(t, a, 700*time.Millisecond, func(t *testing.T, r lab.Result) {
		swept(t, a)
		wantTrace(t, a, before)
		pulled := b.Cryo(t.Context(), "pull", to, "--plain-http")
		if pulled.Code != 0 && (pulled.Code != codeNotFound || r.Code == 0) {
			t.Errorf("pull after push: exit code %d:\n%s", pulled.Code, pulled.Stderr)
		}
		if pulled.Code == 0 {
			must(t, b.Cryo(t.Context(), "verify", to))
			must(t, b.Cryo(t.Context(), "rm", to))
		}
	}, "push", ref, to, "--plain-http")
	must(t, a.Cryo(t.Context(), "push", ref, to, "--plain-http"))
	must(t, b.Cryo(t.Context(), "pull", to, "--plain-http"))
}
