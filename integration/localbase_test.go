package integration

import (
	"strings"
	"testing"
	"time"
)

// TestLocalBase pushes the snapshot of a container whose image was built on its host and is nowhere else. Another host finds the image beside the snapshot: inspect --check says so, and a restore needs nothing else.
func TestLocalBase(t *testing.T) {
	a, b := pair(t)
	id := name(t)
	built := "docker.io/library/" + id + ":dev"
	if err := a.ImportPrograms(t.Context(), built, []string{"workload", "count"}, map[string]string{"nap": "/usr/bin/sleep"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "rm", built) })
	startImage(t, a, built, id, nil, "workload", "count")
	before := await(t, a, id)
	ref, alone := shared.registry.Reference("localbase/"+id+":1"), shared.registry.Reference("localbase-alone/"+id+":1")
	away(t, ref)
	away(t, alone)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	must(t, a.Cryo(t.Context(), "tag", ref, alone))
	must(t, a.Cryo(t.Context(), "push", alone, "--plain-http", "--snapshot-only"))
	remove(t.Context(), a, id)

	r := b.Cryo(t.Context(), "inspect", alone, "--check", "--plain-http")
	if r.Code != codeMisfit || !strings.Contains(r.Stdout, "base-image") || !strings.Contains(r.Stdout, built) {
		t.Errorf("without the image: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := must(t, b.Cryo(t.Context(), "inspect", ref, "--check", "--plain-http")); !strings.Contains(r.Stdout, "fits this host") {
		t.Errorf("%s%s", r.Stdout, r.Stderr)
	}
	begun := time.Now()
	thaw(t, b, frozen{id: id, before: before}, ref)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
