package integration

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// TestRegistryReferrers takes snapshots into the repository of their base image, which lists them then: "oras discover" finds
// all, and copying one takes the base image along.
func TestRegistryReferrers(t *testing.T) {
	a, b := pair(t)
	var want []digest.Digest
	id := name(t)
	startImage(t, a, shared.image, id, nil, "workload", "count")
	before := await(t, a, id)
	for _, tag := range []string{"base:first", "base:second"} {
		ref := shared.registry.Reference(tag)
		away(t, ref)
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http"))
		want = append(want, inspect(t, a, ref).Digest)
	}
	var found struct {
		Referrers []struct {
			Digest       digest.Digest
			ArtifactType string
		}
	}
	out := must(t, a.Run(t.Context(), "oras", "discover", "--plain-http", "--format", "json", shared.image)).Stdout
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	var got []digest.Digest
	for _, r := range found.Referrers {
		if r.ArtifactType == image.ArtifactType {
			got = append(got, r.Digest)
		}
	}
	for _, digest := range want {
		if !slices.Contains(got, digest) {
			t.Errorf("the base image's referrers are %v, want %s among them", got, digest)
		}
	}

	other := newRegistry(t, "referrers", lab.RegistryOptions{})
	from, to := shared.registry.Reference("base:second"), other.Reference("copies/base:second")
	away(t, to)
	must(t, a.Run(t.Context(), "oras", "cp", "--from-plain-http", "--to-plain-http", from, to))
	thaw(t, b, frozen{id: id, before: before}, to)
}
