package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestShimPause holds a container for a second, in which it does not count.
func TestShimPause(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	before := await(t, a, id).Count
	must(t, a.Ctr(t.Context(), "tasks", "pause", id))
	if _, status, err := a.Task(t.Context(), id); status != "PAUSED" {
		t.Errorf("status is %q (%v)", status, err)
	}
	time.Sleep(2 * time.Second)
	must(t, a.Ctr(t.Context(), "tasks", "resume", id))
	if after := await(t, a, id).Count; after-before > 15 {
		t.Errorf("counted from %d to %d while it was paused", before, after)
	}
}

// TestShimStats has a container's memory in its statistics, and an update change its limit.
func TestShimStats(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, []string{"--memory-limit", fmt.Sprint(256 << 20)}, "workload", "count", "--memory", "32")
	usage, limit := memoryStats(t, a, id)
	if usage < 32<<20 || usage > 256<<20 || limit != 256<<20 {
		t.Errorf("memory is %d of %d", usage, limit)
	}
	updated := int64(128 << 20)
	resources := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &updated}}
	if err := taskOf(t, a, id).Update(inDefault(t), containerd.WithResources(resources)); err != nil {
		t.Fatal(err)
	}
	if _, limit := memoryStats(t, a, id); limit != 128<<20 {
		t.Errorf("limit is %d after the update", limit)
	}
}

// TestShimProcesses lists the processes of a container, an exec's among them.
func TestShimProcesses(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "tree", "--width", "2", "--depth", "2")
	state := await(t, a, id).State
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "sleeper", "--detach", id, "sleep", "1000"))
	r := must(t, a.Ctr(t.Context(), "tasks", "ps", id))
	processes := strings.Count(strings.TrimSpace(r.Stdout), "\n")                                // less the heading
	if want := int(state["processes"].(float64)) + 2; processes != want && processes != want-1 { // the zombie may be listed
		t.Errorf("%d processes instead of %d:\n%s", processes, want, r.Stdout)
	}
	if !strings.Contains(r.Stdout, "sleeper") {
		t.Errorf("the exec is not marked:\n%s", r.Stdout)
	}
	must(t, a.Ctr(t.Context(), "tasks", "kill", "--exec-id", "sleeper", "--signal", "SIGKILL", id))
}

// TestShimEvents has every event of a life in its place.
func TestShimEvents(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	events := watch(t, a, id)
	start(t, a, id, nil, "workload", "count")
	must(t, a.Ctr(t.Context(), "tasks", "exec", "--exec-id", "x", id, "true"))
	must(t, a.Ctr(t.Context(), "tasks", "pause", id))
	must(t, a.Ctr(t.Context(), "tasks", "resume", id))
	must(t, a.Ctr(t.Context(), "tasks", "kill", id))
	eventually(t, "exit event", 30*time.Second, func() bool { return slices.Contains(events(), "/tasks/exit") })
	remove(t.Context(), a, id)
	want := []string{"/tasks/create", "/tasks/start", "/tasks/exec-added", "/tasks/exec-started", "/tasks/exit exec",
		"/tasks/paused", "/tasks/resumed", "/tasks/exit", "/tasks/delete"}
	eventually(t, "delete event", 30*time.Second, func() bool { return slices.Contains(events(), "/tasks/delete") })
	if got := events(); !slices.Equal(got, want) {
		t.Errorf("events are\n%q, want\n%q", got, want)
	}
}

// TestShimOOM has the event and the exit status of a container that the kernel killed for its memory.
func TestShimOOM(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	events := watch(t, a, id)
	start(t, a, id, []string{"--memory-limit", fmt.Sprint(64 << 20)}, "workload", "oom", "--after", "1s")
	eventually(t, "oom event", 30*time.Second, func() bool { return slices.Contains(events(), "/tasks/oom") })
	eventually(t, "exit event", 30*time.Second, func() bool { return slices.Contains(events(), "/tasks/exit") })
	deleted(t, a, id, 137)
}

// taskOf is a container's task for the client library.
func taskOf(t *testing.T, h *lab.Host, id string) containerd.Task {
	t.Helper()
	container, err := client(t, h).LoadContainer(inDefault(t), id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.Task(inDefault(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// memoryStats is a task's memory use and limit in bytes, with either version of cgroups.
func memoryStats(t *testing.T, h *lab.Host, id string) (usage, limit uint64) {
	t.Helper()
	metric, err := taskOf(t, h, id).Metrics(inDefault(t))
	if err != nil {
		t.Fatal(err)
	}
	stats, err := typeurl.UnmarshalAny(metric.Data)
	if err != nil {
		t.Fatal(err)
	}
	switch s := stats.(type) {
	case *cgroup1.Metrics:
		return s.Memory.Usage.Usage, s.Memory.Usage.Limit
	case *cgroup2.Metrics:
		return s.Memory.Usage, s.Memory.UsageLimit
	}
	t.Fatalf("statistics are %T", stats)
	return 0, 0
}
