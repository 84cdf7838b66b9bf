package integration

import (
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestPlatformKeep has a platform take snapshots of several containers at once, in one process, each of which is tried by a restore process of the installed cryo.
func TestPlatformKeep(t *testing.T) {
	a, _ := pair(t)
	args, before := []string{"keep"}, map[string]lab.Answer{}
	for range 3 {
		id := name(t)
		start(t, a, id, nil, "workload", "count", "--memory", "8")
		must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "mark", id, "touch", marker))
		before[id] = await(t, a, id)
		args = append(args, id, "cryo.test/"+id+":1")
	}
	var taken []struct {
		Digest, Container string
		Running           bool
	}
	platform(t, a, args...).result(t, &taken)
	for _, snapshot := range taken {
		if snapshot.Running || snapshot.Digest == "" {
			t.Errorf("it has taken %+v", snapshot)
		}
		id := snapshot.Container
		remove(t.Context(), a, id)
		must(t, a.Cryo(t.Context(), "restore", "cryo.test/"+id+":1"))
		if after := await(t, a, id); after.Life != before[id].Life || !marked(t, a, id) {
			t.Errorf("%s is %+v, and was %+v", id, after, before[id])
		}
	}
}

// TestPlatformGPU has a platform load device memory for the next restore: it starts cryo's programs where they are installed.
func TestPlatformGPU(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, handing, "--blocks", "3,40")
	coldGPU(t, b)
	var seen struct {
		Fits     bool
		Findings []struct{ Rule, Problem string }
	}
	platform(t, b, "inspect", ref).result(t, &seen)
	if !seen.Fits {
		t.Errorf("it does not fit: %+v", seen.Findings)
	}
	var ready struct{ Digest string }
	platform(t, b, "prewarm", "--gpu", ref).result(t, &ready)
	wantLoaded(t, b, ref, blocks44)
	order(t, b, loadless...)
	restoreLoaded(t, b, ref, true, before)
}
