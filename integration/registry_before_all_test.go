package integration

import (
	"testing"
)

// TestPassingBefore has the registry give a bad answer before the first instruction of the container, to the first request for memory and to the first for anything else: the container
// runs all the same.
func TestPassingBefore(t *testing.T) {
	b, _ := pair(t) // it has the base image
	path := pushed(t, b)
	for what, bad := range badAnswers {
		t.Run(what, func(t *testing.T) {
			g := newGate(t, shared.registry, path)
			g.bad = bad
			ref, id := g.address+"/"+path, name(t)
			cleanup(t, b, id)
			forget(t, b, ref)
			g.badParts.Store(1)
			g.badBodies.Store(1)
			g.open()
			must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--wait"))
			await(t, b, id)
			if left := g.badParts.Load() + g.badBodies.Load(); left > 0 {
				t.Errorf("%d bad answers were not asked for", left)
			}
			must(t, b.Cryo(t.Context(), "verify", "--pull", "never", ref))
			must(t, b.Cryo(t.Context(), "rm", ref))
			remove(t.Context(), b, id)
		})
	}
}
