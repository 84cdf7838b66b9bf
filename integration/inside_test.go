package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestInside have something inside of a container that shall survive a snapshot. Each
// starts a workload on host a, takes a snapshot, sends it to the registry, and restores it on host b, which has
// nothing of it. The workload knows what its state shall be.

// journey is a container's way from one host to the other.
type journey struct {
	id         string
	run        []string // flags of ctr run
	checkpoint []string // flags of cryo checkpoint
	between    func()   // done when the snapshot is in the registry
	restore    []string // flags of cryo restore
}

// ref is the snapshot's name in the shared registry.
func (j journey) ref() string { return shared.registry.Reference("snapshots/" + j.id + ":1") }

// travel starts a workload on a and moves it to b. The answers are those of the workload on either host.
func travel(t *testing.T, j journey, workload ...string) (before, after lab.Answer) {
	t.Helper()
	a, _ := pair(t)
	if j.id == "" {
		j.id = name(t)
	}
	startImage(t, a, shared.image, j.id, j.run, append([]string{"workload"}, workload...)...)
	await(t, a, j.id)
	return move(t, j)
}

// move moves a container that runs on a to b, and sees that it went on there and ended here.
func move(t *testing.T, j journey) (before, after lab.Answer) {
	t.Helper()
	a, b := pair(t)
	before = await(t, a, j.id)
	checkpoint(t, a, j)
	eventually(t, "the task's end", 30*time.Second, func() bool {
		_, status, err := a.Task(t.Context(), j.id)
		return err == nil && (status == "STOPPED" || status == "") // none where "ctr run" has seen the end
	})
	if j.between != nil {
		j.between()
	}
	after = restore(t, b, j)
	goneOn(t, before, after)
	return before, after
}

// checkpoint takes a snapshot and sends it to the registry. When the test ends, neither host knows it any more.
func checkpoint(t *testing.T, h *lab.Host, j journey) lab.Result {
	t.Helper()
	a, b := pair(t)
	t.Cleanup(func() {
		a.Cryo(cleanupContext(t), "rm", j.ref())
		b.Cryo(cleanupContext(t), "rm", j.ref())
	})
	return must(t, h.Cryo(t.Context(), slices.Concat([]string{"checkpoint", j.id, j.ref(), "--push", "--plain-http"}, j.checkpoint)...))
}

// restore restores a snapshot and waits for the workload's answer.
func restore(t *testing.T, h *lab.Host, j journey) lab.Answer {
	t.Helper()
	cleanup(t, h, j.id)
	must(t, h.Cryo(t.Context(), slices.Concat([]string{"restore", j.ref(), "--plain-http", "--wait", "--name", j.id}, j.restore)...))
	return await(t, h, j.id)
}

// goneOn ends the test unless the second answer is a later one of the same process.
func goneOn(t *testing.T, before, after lab.Answer) {
	t.Helper()
	if after.Life != before.Life || after.PID != before.PID || after.Count < before.Count {
		t.Fatalf("was process %d (%s) at %d, is process %d (%s) at %d",
			before.PID, before.Life, before.Count, after.PID, after.Life, after.Count)
	}
}
