package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// takenSnapshot is what cryo checkpoint says in JSON.
type takenSnapshot struct {
	Running, Removed, Pushed bool
	Warnings                 []string
	Push                     struct{ BytesMoved int64 }
}

// goneFrom tells whether a host has nothing of a container.
func goneFrom(t *testing.T, h *lab.Host, id string) bool {
	t.Helper()
	return h.Ctr(t.Context(), "containers", "info", id).Code != 0 && h.Ctr(t.Context(), "snapshots", "info", id).Code != 0 && h.Ctr(t.Context(), "tasks", "kill", id).Code != 0
}

// TestCLIExec takes snapshots of a container in which exec has started a process: it is named, goes on with the container, and is not in the snapshot.
func TestCLIExec(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "cli/exec:1"
	away(t, ref)
	start(t, a, id, nil, "workload", "count")
	await(t, a, id)
	for _, h := range []string{"sleeper", "other"} { // the one is not named for the other's container
		if h == "other" {
			start(t, a, id+h, nil, "workload", "count")
			must(t, a.Ctr(t.Context(), "tasks", "exec", "--detach", "--exec-id", h, id+h, "sleep", "2000"))
			continue
		}
		must(t, a.Ctr(t.Context(), "tasks", "exec", "--detach", "--exec-id", h, id, "sh", "-c", "sleep 1000 & exec sleep 1000"))
	}
	pids := func() (found []string) {
		for line := range strings.Lines(must(t, a.Ctr(t.Context(), "tasks", "ps", id)).Stdout) {
			found = append(found, strings.Fields(line)[0])
		}
		return found[1:]
	}
	before := pids()
	if len(before) != 3 {
		t.Fatalf("the container has the processes %v", before)
	}
	for _, leave := range []bool{true, false} {
		args := []string{"checkpoint", id, ref, "--json"}
		if leave {
			args = append(args, "--leave-running")
		}
		result := must(t, a.Cryo(t.Context(), args...))
		var r takenSnapshot
		if err := json.Unmarshal([]byte(result.Stdout), &r); err != nil || len(r.Warnings) != 1 {
			t.Fatalf("%v, %s", err, result.Stdout)
		}
		if !strings.Contains(r.Warnings[0], "exec has started in "+id+": ") || strings.Count(r.Warnings[0], "(sleep)") != 1 || !strings.Contains(result.Stderr, r.Warnings[0]) {
			t.Errorf("the warning is %q, and on standard error %q", r.Warnings[0], result.Stderr)
		}
		if leave {
			await(t, a, id)
			if after := pids(); strings.Join(after, " ") != strings.Join(before, " ") {
				t.Errorf("of the processes %v there are %v", before, after)
			}
		}
	}
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref))
	await(t, a, id)
	if after := pids(); len(after) != 1 {
		t.Errorf("restored are %v", after)
	}
}
