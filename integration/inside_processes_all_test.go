package integration

import "testing"

// TestInsideProcesses has a tree of processes with threads and sessions, pipes between all parents and children, and a
// zombie. Each process and thread says that it has its id and its memory of how often it was asked.
func TestInsideProcesses(t *testing.T) {
	before, after := travel(t, journey{}, "tree", "--width", "4", "--depth", "3", "--threads", "4")
	for _, key := range []string{"processes", "threads"} {
		if before.State[key] != after.State[key] {
			t.Errorf("there were %v %s and are %v", before.State[key], key, after.State[key])
		}
	}
	t.Logf("%v processes with %v threads of their own", after.State["processes"], after.State["threads"])
}
