package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestInsideLimits has limits of memory and processor time. On the other host the cgroup has them, an update changes
// them, and a container that takes too much memory is killed, of which containerd is told.
func TestInsideLimits(t *testing.T) {
	a, b := pair(t)
	j := journey{id: name(t), run: []string{"--memory-limit", "100663296", "--cpus", "0.75", "--cpu-shares", "512", "--cpuset-cpus", "0"}}
	files := []struct{ controller, v1, v2 string }{
		{"memory", "memory.limit_in_bytes", "memory.max"},
		{"cpu", "cpu.cfs_quota_us", "cpu.max"},
		{"cpu", "cpu.cfs_period_us", "cpu.max"},
		{"cpu", "cpu.shares", "cpu.weight"},
		{"cpuset", "cpuset.cpus", "cpuset.cpus"},
	}
	limits := func(h *lab.Host) (all []string) {
		pid, _, err := h.Task(t.Context(), j.id)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			content, err := lab.CgroupFile(pid, f.controller, f.v1, f.v2)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, content)
		}
		return all
	}
	startImage(t, a, shared.image, j.id, j.run, "workload", "oom", "--after", "1h")
	await(t, a, j.id)
	before := limits(a)
	if before[0] != "100663296" || before[4] != "0" {
		t.Fatalf("before the snapshot, limits are %q", before)
	}
	events := watch(t, b, j.id)
	move(t, j)
	if after := limits(b); !slices.Equal(before, after) {
		t.Errorf("limits were %q and are %q", before, after)
	}
	if usage, limit := memoryStats(t, b, j.id); limit != 100663296 || usage == 0 {
		t.Errorf("statistics say %d of %d bytes", usage, limit)
	}
	if _, err := b.Ask(t.Context(), j.id, "take"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "oom event", 30*time.Second, func() bool { return slices.Contains(events(), "/tasks/oom") })
	eventually(t, "exit event", 30*time.Second, func() bool { return slices.Contains(events(), "/tasks/exit") })
	deleted(t, b, j.id, 137)
}
