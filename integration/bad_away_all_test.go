package integration

import (
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadAwayRestore restarts containerd at random moments of a restore: the container runs, or the command says that containerd has gone away and nothing is left.
func TestBadAwayRestore(t *testing.T) {
	h := newHost(t, "away", lab.HostOptions{})
	ref := snapshotOf(t, h, "count", "--memory", "64")
	id := name(t)
	before := trace(t, h)
	takes := must(t, h.Cryo(t.Context(), "restore", ref, "--name", id)).Elapsed
	remove(t.Context(), h, id)
	for i := range 2 * breaks {
		ended := make(chan lab.Result, 1)
		go func() { ended <- h.Cryo(t.Context(), "restore", ref, "--name", id) }()
		time.Sleep(takes/10 + time.Duration(rand.Int64N(int64(takes))))
		if err := h.StopDaemon([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[i%2]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Second))))
		if err := h.StartDaemon(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := <-ended
		if r.Code == 0 || strings.Contains(r.Stderr, id+" runs") {
			counts(t, h, id)
			remove(t.Context(), h, id)
		} else {
			if r.Code != codeUnavailable || !strings.Contains(r.Stderr, "hint: see that containerd runs") || r.Stdout != "" {
				t.Errorf("exit code %d, want %d and a hint:\n%s", r.Code, codeUnavailable, r.Stderr)
			}
		}
		h.Cryo(t.Context(), "ls") // what a shim has sent while containerd was away comes soon
		wantTrace(t, h, without(before, nil, []string{"process "}), "process ", abandonedSockets(h))
	}
}

// TestBadAwayForGood has containerd go away in a restore and not come back: the command says so.
func TestBadAwayForGood(t *testing.T) {
	h := newHost(t, "gone", lab.HostOptions{CryoConfig: "[containerd]\npatience = 1\n"})
	ref := snapshotOf(t, h, "count", "--memory", "64")
	id := name(t)
	ended := make(chan lab.Result, 1)
	go func() { ended <- h.Cryo(t.Context(), "restore", ref, "--name", id) }()
	if find(t, h, isRestoring) == 0 {
		t.Fatal("no restore")
	}
	if err := h.StopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := <-ended
	refusal(t, r, codeUnavailable, "")
	if err := h.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	cleanup(t, h, id)
	if strings.Contains(r.Stderr, id+" runs, and containerd cannot be reached") {
		counts(t, h, id)
	}
	cleanup(t, h, id+"-2")
	must(t, h.Cryo(t.Context(), "restore", ref, "--name", id+"-2"))
	counts(t, h, id+"-2")
}
