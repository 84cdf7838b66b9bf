package integration

import (
	"testing"

	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadContainer names containers that no snapshot can be taken of.
func TestBadContainer(t *testing.T) {
	a, _ := pair(t)
	ids := map[string]string{"absent": name(t), "created": name(t), "task deleted": name(t), "stopped": name(t), "stock": name(t)}
	for _, id := range []string{ids["created"], ids["task deleted"]} {
		cleanup(t, a, id)
		must(t, a.Ctr(t.Context(), "containers", "create", "--runtime", cryoRuntime, lab.ImageName, id, "workload", "count"))
	}
	must(t, a.Ctr(t.Context(), "tasks", "start", "--detach", "--null-io", ids["task deleted"]))
	must(t, a.Ctr(t.Context(), "tasks", "delete", "--force", ids["task deleted"]))
	start(t, a, ids["stopped"], nil, "workload", "count")
	must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "KILL", ids["stopped"]))
	start(t, a, ids["stock"], []string{"--runtime", runcRuntime}, "workload", "count")
	for _, test := range []struct {
		name, words string
		code        int
	}{
		{"absent", "has none of this name", codeNotFound},
		{"created", "not running", codePrecondition},
		{"task deleted", "not running", codePrecondition},
		{"stopped", "the container is stopped, not running", codePrecondition},
		{"stock", "not under cryo's runtime", codePrecondition},
	} {
		t.Run(test.name, func(t *testing.T) {
			refused(t, a, test.code, test.words, "checkpoint", ids[test.name], "bad/container:1")
		})
	}
	counts(t, a, ids["stock"])
}

// TestBadCreated names a container whose task is created and not started.
func TestBadCreated(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	cleanup(t, a, id)
	must(t, a.Ctr(t.Context(), "containers", "create", "--runtime", cryoRuntime, lab.ImageName, id, "workload", "count"))
	c, err := a.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	container, err := c.LoadContainer(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.NewTask(t.Context(), cio.NullIO)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, a, codePrecondition, "the container is created, not running", "checkpoint", id, "bad/created:1")
	if err := task.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts(t, a, id)
}

// TestBadName restores under names that are taken, or that containerd does not take.
func TestBadName(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count")
	taken := name(t)
	start(t, a, taken, nil, "workload", "count")
	refused(t, a, codeExists, "has a container of this name", "restore", ref, "--name", taken)
	refused(t, a, codeUsage, "restore as", "restore", ref, "--name", "no/name")
	counts(t, a, taken)
}
