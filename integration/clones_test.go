package integration

import (
	"sync"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestClones restore one snapshot several times, and look for what no two containers may have in common.

// cloned is what a container of the workload "clones" has.
type cloned struct{ wiped, locked, random string }

// clonedFrom restores a snapshot with more flags of cryo restore, once for each name and all at once, and returns what the containers have.
func clonedFrom(t *testing.T, h *lab.Host, ref string, flags []string, names ...string) (all []cloned) {
	t.Helper()
	results := make([]lab.Result, len(names))
	var restores sync.WaitGroup
	for i, id := range names {
		cleanup(t, h, id)
		restores.Go(func() {
			results[i] = h.Cryo(t.Context(), append([]string{"restore", ref, "--name", id}, flags...)...)
		})
	}
	restores.Wait()
	for i, id := range names {
		must(t, results[i])
		all = append(all, draws(t, h, id))
	}
	return all
}

// draws has the workload "clones" look at its memory, and draw a random value of the kernel's.
func draws(t *testing.T, h *lab.Host, id string) cloned {
	t.Helper()
	state := await(t, h, id).State
	drawn, err := h.Ask(t.Context(), id, "draw")
	if err != nil || !drawn.OK {
		t.Fatalf("%v: %s", err, drawn.Error)
	}
	text := func(value any) string { s, _ := value.(string); return s }
	return cloned{text(state["wiped"]), text(state["locked"]), text(drawn.State["Go crypto/rand"])}
}

// TestClones restores two clones at once from a container that goes on, whose memory that fork wipes they must not have. TestClonesWays has moves, which have it.
func TestClones(t *testing.T) {
	h, _ := pair(t)
	id := name(t)
	ref := "clones/" + id + ":1"
	startImage(t, h, shared.image, id, nil, "workload", "clones")
	await(t, h, id)
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	all := append(clonedFrom(t, h, ref, nil, id+"-1", id+"-2"), draws(t, h, id))
	drawn := map[string]bool{}
	for i, want := range []string{"zeros", "zeros", "as it was"} {
		if c := all[i]; c.wiped != want || c.locked != want {
			t.Errorf("container %d has memory that fork wipes %s, locked %s, not %s", i, c.wiped, c.locked, want)
		}
		drawn[all[i].random] = true
	}
	if len(drawn) != len(all) || drawn[""] {
		t.Errorf("they have drawn %v", all)
	}
}
