package integration

import (
	"testing"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestCgroup2 moves a container between two hosts with cgroup v2. On a machine with v1 these have hardly a controller,
// so there are no limits here; freezing, thawing and finding the restored task's cgroup are the same.
func TestCgroup2(t *testing.T) {
	a := newHost(t, "unified-a", lab.HostOptions{Unified: true})
	b := newHost(t, "unified-b", lab.HostOptions{Unified: true})
	id, ref := name(t), shared.registry.Address+"/snapshots/"+name(t)+":1"
	task := created(t, a, id, cryoRuntime, nil, cio.NullIO, []oci.SpecOpts{oci.WithoutRunMount}, "workload", "count", "--memory", "16")
	if err := task.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
	before := await(t, a, id)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--plain-http", "--leave-running"))
	wentOn(t, before, await(t, a, id))
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--plain-http", "--push"))
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--plain-http"))
	wentOn(t, before, await(t, b, id))
	for _, command := range []string{"pause", "resume", "metrics"} {
		must(t, b.Ctr(t.Context(), "tasks", command, id))
	}
}
