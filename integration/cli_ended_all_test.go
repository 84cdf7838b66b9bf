package integration

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestCLIEnded takes snapshots that end the container. Without --rm the command that removes it is printed, and does; with it that is done, but
// not before the snapshot is where it shall be, and to no container of nerdctl's.
func TestCLIEnded(t *testing.T) {
	a, _ := pair(t)
	to := shared.registry.Reference("cli/ended:1")
	away(t, to)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	await(t, a, id)
	out := must(t, a.Cryo(t.Context(), "checkpoint", id, to, "--push", "--plain-http")).Stdout
	if !strings.Contains(out, "\npushed to "+to+": ") || !strings.Contains(out, "iB, complete ") {
		t.Errorf("it does not say what was pushed:\n%s", out)
	}
	_, removal, _ := strings.Cut(out, "\n"+id+" has ended; to remove it: ")
	if removal = strings.TrimSpace(removal); !strings.HasPrefix(removal, "ctr ") {
		t.Fatalf("it does not say how to remove the container:\n%s", out)
	}
	must(t, a.Run(t.Context(), strings.Fields(removal)...))
	if !goneFrom(t, a, id) {
		t.Errorf("%s leaves something", removal)
	}

	start(t, a, id, nil, "workload", "count")
	await(t, a, id)
	refused(t, a, codeUsage, "a container that goes on cannot be removed", "checkpoint", id, to, "--rm", "--leave-running")
	if out := a.Cryo(t.Context(), "checkpoint", id, "127.0.0.1:1/cli/ended:1", "--rm", "--push", "--plain-http"); out.Code != codeUnavailable || goneFrom(t, a, id) {
		t.Errorf("to no registry: %d, %s", out.Code, out.Stderr)
	}
	await(t, a, id)
	var r takenSnapshot
	out = must(t, a.Cryo(t.Context(), "checkpoint", id, to, "--rm", "--push", "--plain-http", "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &r); err != nil || !r.Removed || r.Running || !r.Pushed || r.Push.BytesMoved == 0 || len(r.Warnings) != 0 {
		t.Errorf("%v, %s", err, out)
	}
	if !goneFrom(t, a, id) {
		t.Error("--rm leaves something")
	}
	must(t, a.Cryo(t.Context(), "verify", to))

	start(t, a, id, []string{"--label", "nerdctl/name=" + id}, "workload", "count")
	await(t, a, id)
	refused(t, a, codeUsage, "no container that nerdctl made", "checkpoint", id, to, "--rm")
	await(t, a, id)
	if out := must(t, a.Cryo(t.Context(), "checkpoint", id, to)).Stdout; !strings.Contains(out, "to remove it: nerdctl ") {
		t.Errorf("it does not say how to remove the container:\n%s", out)
	}
}
