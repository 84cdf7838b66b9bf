package integration

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCLIRestoreOwn treats a restored container as ctr's own, and takes it through a second generation.
func TestCLIRestoreOwn(t *testing.T) {
	a, b := pair(t)
	f := freeze(t, []string{"count", "--memory", "8"}, "--push", "--plain-http")
	cleanup(t, b, f.id)
	must(t, b.Cryo(t.Context(), "restore", f.ref, "--plain-http", "--wait"))
	middle := await(t, b, f.id)
	goneOn(t, f.before, middle)
	for _, list := range [][]string{{"containers", "ls", "-q"}, {"tasks", "ls", "-q"}} {
		if out := must(t, b.Ctr(t.Context(), list...)).Stdout; !slices.Contains(strings.Fields(out), f.id) {
			t.Errorf("ctr %s does not list it:\n%s", strings.Join(list, " "), out)
		}
	}
	if out := must(t, b.Ctr(t.Context(), "tasks", "exec", "--exec-id", "x", f.id, "cat", "/etc/motd")).Stdout; out != "as in the image\n" {
		t.Errorf("exec printed %q", out)
	}
	must(t, b.Ctr(t.Context(), "tasks", "pause", f.id))
	must(t, b.Ctr(t.Context(), "tasks", "resume", f.id))

	second := shared.registry.Reference("artifact/" + f.id + ":2")
	away(t, second)
	must(t, b.Cryo(t.Context(), "checkpoint", f.id, second, "--push", "--plain-http"))
	must(t, b.Ctr(t.Context(), "tasks", "delete", f.id))
	must(t, b.Ctr(t.Context(), "containers", "delete", f.id))
	cleanup(t, a, f.id)
	must(t, a.Cryo(t.Context(), "restore", second, "--plain-http", "--wait"))
	last := await(t, a, f.id)
	goneOn(t, middle, last)
	if last.State["sha256"] != f.before.State["sha256"] {
		t.Errorf("memory was %v, is %v", f.before.State, last.State)
	}
	must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", f.id))
	eventually(t, "the task is deleted, and ctr knows how it ended", 10*time.Second, func() bool { // it ends a moment after the signal
		r := a.Ctr(t.Context(), "tasks", "delete", f.id)
		return r.Code == 0 && strings.Contains(r.Stderr, "exit code 137")
	})
	must(t, a.Ctr(t.Context(), "containers", "delete", f.id))
}
