package integration

import (
	"testing"
)

// TestClonesWays restores clones, and moves, in each way that memory takes: read before the container runs, pulled while it runs, and for a container that asks by an annotation.
func TestClonesWays(t *testing.T) {
	a, _ := pair(t)
	path, _ := pushedMarked(t, nil, "clones")
	ref := shared.registry.Reference(path)
	forget(t, a, ref)
	h := annotationHost(t, name(t), shared.registry.Address)
	for _, move := range []bool{false, true} {
		want, flags, annotation := "zeros", []string{"--plain-http"}, "io.cryo.restore.as=clone"
		if move {
			want, flags, annotation = "as it was", append(flags, "--move"), "io.cryo.restore.as=move"
		}
		have := map[string]cloned{
			"pulled": clonedFrom(t, a, ref, flags, name(t))[0],
			"here":   clonedFrom(t, a, ref, flags, name(t))[0],
			"eager":  clonedFrom(t, a, ref, append(flags, "--eager"), name(t))[0],
		}
		id := name(t)
		must(t, runFrom(t, h, id, ref, []string{"--annotation", annotation}, "workload", "clones"))
		have["annotation"] = draws(t, h, id)
		for way, c := range have {
			if c.wiped != want || c.locked != want {
				t.Errorf("%s, a move: %v: memory that fork wipes is %s, locked %s, not %s", way, move, c.wiped, c.locked, want)
			}
		}
		must(t, a.Cryo(t.Context(), "rm", ref))
	}
}
