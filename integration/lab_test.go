package integration

import (
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestLab proves the harness with the stock runtime: a container runs, answers, takes exec and dies.
func TestLab(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, []string{"--runtime", runcRuntime}, "workload", "count", "--memory", "8")
	first := await(t, a, id)
	second := await(t, a, id)
	if second.Count < first.Count || second.State["sha256"] != first.State["sha256"] {
		t.Errorf("counted from %d to %d, memory %v to %v", first.Count, second.Count, first.State, second.State)
	}
	out := must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "x", id, "workload", "ask")).Stdout
	if !strings.Contains(out, `"ok":true`) {
		t.Errorf("exec said %q", out)
	}
	must(t, a.Ctr(t.Context(), "tasks", "kill", id))
}

// TestLabHostsApart runs containers of one name on both hosts at once, and pulls the image on the second.
func TestLabHostsApart(t *testing.T) {
	a, b := pair(t)
	must(t, b.Ctr(t.Context(), append([]string{"images", "pull"}, append(shared.registry.CtrFlags(lab.Password), shared.image)...)...))
	id := name(t)
	for _, h := range []*lab.Host{a, b} {
		startImage(t, h, shared.image, id, []string{"--runtime", runcRuntime}, "workload", "count")
	}
	for _, h := range []*lab.Host{a, b} {
		await(t, h, id)
	}
}
