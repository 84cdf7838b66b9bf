package integration

import (
	"strconv"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestInsideLarge has a process of 2.25 GiB, more bytes than 31 bits count: a quarter of it random and a quarter zero. It prints how long each step takes.
func TestInsideLarge(t *testing.T) {
	const memory = 2304 // MiB
	a, b := pair(t)
	j := journey{id: name(t)}
	startImage(t, a, shared.image, j.id, []string{"--null-io"}, "workload", "count", "--memory", strconv.Itoa(memory), "--fill", "mixed")
	before := patient(t, a, j.id)
	taken := checkpoint(t, a, j)
	pulled := must(t, b.Cryo(t.Context(), "pull", j.ref(), "--plain-http"))
	cleanup(t, b, j.id)
	restored := must(t, b.Cryo(t.Context(), "restore", j.ref(), "--plain-http", "--wait"))
	after := patient(t, b, j.id)
	goneOn(t, before, after)
	if before.State["sha256"] != after.State["sha256"] || after.State["bytes"] != float64(memory<<20) {
		t.Errorf("memory was %v and is %v", before.State, after.State)
	}
	t.Logf("%s", taken.Stdout)
	t.Logf("checkpoint and push %.1f s, pull %.1f s, restore %.1f s", taken.Elapsed.Seconds(), pulled.Elapsed.Seconds(), restored.Elapsed.Seconds())
}

// patient is await for a workload that takes its time to make or to check its memory.
func patient(t *testing.T, h *lab.Host, id string) (answer lab.Answer) {
	t.Helper()
	eventually(t, "answer", 4*time.Minute, func() bool {
		var err error
		answer, err = h.Ask(t.Context(), id)
		return err == nil
	})
	if !answer.OK {
		t.Fatalf("%s on %s is damaged: %s", id, h.Name, answer.Error)
	}
	return answer
}
