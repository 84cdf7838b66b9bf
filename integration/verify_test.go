package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// noTrial fails the test where a container of a trial is left.
func noTrial(t *testing.T, h *lab.Host) {
	t.Helper()
	for _, kind := range []string{"tasks", "containers", "snapshots"} {
		if out := must(t, h.Ctr(t.Context(), kind, "ls")).Stdout; strings.Contains(out, "cryo-verify-") {
			t.Errorf("%s are left of a trial:\n%s", kind, out)
		}
	}
}

// TestVerify has snapshots tried: of a container that goes on, and of one that ends, which is then restored.
func TestVerify(t *testing.T) {
	a, _ := pair(t)
	j := journey{id: name(t)}
	startImage(t, a, shared.image, j.id, nil, "workload", "count", "--memory", "16")
	before := await(t, a, j.id)
	pid, _, err := a.Task(t.Context(), j.id)
	if err != nil {
		t.Fatal(err)
	}
	forget(t, a, j.ref())
	verified := func(flags ...string) {
		t.Helper()
		r := must(t, a.Cryo(t.Context(), append([]string{"checkpoint", j.id, j.ref(), "--json", "--verify"}, flags...)...))
		var result struct{ Verify struct{ Seconds float64 } }
		if err := json.Unmarshal([]byte(r.Stdout), &result); err != nil || result.Verify.Seconds <= 0 {
			t.Errorf("%v, %s", err, r.Stdout)
		}
		noTrial(t, a)
	}
	verified("--leave-running")
	if now, _, err := a.Task(t.Context(), j.id); err != nil || now != pid {
		t.Errorf("the container has process %d, then %d, %v", pid, now, err)
	}
	counts(t, a, j.id)
	verified()
	if _, status, err := a.Task(t.Context(), j.id); err != nil || status != "STOPPED" {
		t.Errorf("the container is %s, %v", status, err)
	}
	remove(t.Context(), a, j.id)
	must(t, a.Cryo(t.Context(), "restore", j.ref()))
	goneOn(t, before, await(t, a, j.id))
}
