package integration

import (
	"slices"
	"strings"
	"testing"
)

// TestRestorable takes snapshots of what CRIU dumps and has no way back for. That is refused by a rule before anything is frozen, and the container runs on; where a refusal would be wrong, there is a
// warning.
func TestRestorable(t *testing.T) {
	a, _ := pair(t)
	for _, test := range []struct {
		what, rule string
		flags      []string
	}{
		{"sealed-memfd", "sealed-memfd", nil},
		{"mapped-lock", "mapped-lock", []string{"--file-locks"}},
		{"linked-socket", "renamed-socket", nil},
	} {
		t.Run(test.what, func(t *testing.T) {
			id := name(t)
			ref := shared.registry.Reference("restorable/" + id + ":1")
			start(t, a, id, nil, "workload", "restorable", "--what", test.what)
			forget(t, a, ref)
			before := trace(t, a)
			r := a.Cryo(t.Context(), slices.Concat([]string{"checkpoint", id, ref}, test.flags)...)
			if r.Code == 0 { // what the rule is for
				remove(t.Context(), a, id)
				cleanup(t, a, id)
				restored := must(t, a.Cryo(t.Context(), "restore", ref, "--name", id))
				answer, err := a.AwaitAnswer(t.Context(), id)
				t.Fatalf("the checkpoint was taken; the restored container is whole: %v (%v, %v), %s", answer.OK, answer.Error, err, restored.Stderr)
			}
			refusal(t, r, codePrecondition, test.rule+": ")
			counts(t, a, id)
			await(t, a, id)
			wantTrace(t, a, before)
		})
	}
	for _, what := range []string{"sealed-private-memfd", "sealed-future-memfd", "sealed-later-memfd", "mapped-private-lock"} {
		t.Run(what, func(t *testing.T) { // these can be restored, and are not refused
			id := name(t)
			ref := shared.registry.Reference("restorable/" + id + ":1")
			start(t, a, id, nil, "workload", "restorable", "--what", what)
			forget(t, a, ref)
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--file-locks"))
			remove(t.Context(), a, id)
			cleanup(t, a, id)
			must(t, a.Cryo(t.Context(), "restore", ref, "--name", id))
			await(t, a, id)
		})
	}
	t.Run("sqlite", func(t *testing.T) {
		id := name(t)
		ref := shared.registry.Reference("restorable/" + id + ":1")
		start(t, a, id, nil, "workload", "restorable", "--what", "sqlite")
		forget(t, a, ref)
		r := must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
		remove(t.Context(), a, id)
		cleanup(t, a, id)
		must(t, a.Cryo(t.Context(), "restore", ref, "--name", id))
		if answer, err := a.AwaitAnswer(t.Context(), id); err != nil || answer.OK {
			t.Errorf("the warning has no reason any more: %+v, %v", answer, err)
		}
		if !strings.Contains(r.Stderr, "/srv/data.db") || !strings.Contains(r.Stderr, "volume") {
			t.Errorf("no warning: %s", r.Stderr)
		}
	})
}
