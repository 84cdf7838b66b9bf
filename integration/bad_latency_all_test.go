package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// TestBadLatency asks for the state of a container of 1 GiB while it is dumped. The answer shall come within 100 ms; as
// other programs share the machine, the test allows more and prints the figure.
func TestBadLatency(t *testing.T) {
	const limit = time.Second
	a, _ := pair(t)
	id, ref := name(t), "bad/latency:1"
	start(t, a, id, nil, "workload", "count", "--memory", "1024")
	forget(t, a, ref)
	c, err := a.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := namespaces.WithNamespace(t.Context(), "default")
	container, err := c.LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var states, lists []time.Duration
	r := duringDump(t, a, id, ref, func(int) {
		// runc asks CRIU for its version first, so there are two processes one after the other. Asking takes a third of a second on a busy machine.
		for began, seen := time.Now(), time.Now(); time.Since(seen) < time.Second; {
			if time.Since(began) > 2*time.Minute {
				t.Fatal("a dump of 1 GiB has not ended in 2 minutes")
			}
			if len(states)%20 == 0 && slices.ContainsFunc(processes(t, a), dumping(a)) {
				seen = time.Now()
			}
			asked := time.Now()
			if _, err := task.Status(ctx); err != nil {
				t.Error(err)
			}
			states = append(states, time.Since(asked))
			if len(states)%20 == 1 {
				lists = append(lists, must(t, a.Ctr(ctx, "tasks", "ls")).Elapsed)
			}
		}
	})
	must(t, r)
	counts(t, a, id)
	worst, worstList := slices.Max(states), slices.Max(lists)
	t.Logf("State: worst of %d answers during the dump %s; ctr tasks ls: worst of %d runs %s", len(states), worst, len(lists), worstList)
	t.Log(r.Stdout)
	if worst > limit || worstList > limit || len(states) < 50 {
		t.Errorf("want at least 50 answers, none after more than %s", limit)
	}
}
