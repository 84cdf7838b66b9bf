package integration

import "testing"

// TestInsideSharedMemory has System V and POSIX shared memory, a memfd, and mappings shared with files.
func TestInsideSharedMemory(t *testing.T) {
	travel(t, journey{}, "shm")
}

// TestInsideTmpfs has files in /dev/shm, in /run and in a tmpfs of the user's.
func TestInsideTmpfs(t *testing.T) {
	travel(t, journey{run: []string{"--mount", "type=tmpfs,src=tmpfs,dst=/cache,options=size=64m:mode=1777"}},
		"volumes", "--size", "4096", "/dev/shm", "/run", "/cache")
}
