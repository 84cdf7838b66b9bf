package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// commands are the names by which the kernel knows the processes that are targets and events.
var commands = map[string]string{
	"containerd": "containerd", "shim": "containerd-shim", "restore": "cryo-restore", "checkpoint": "cryo-checkpoint", "criu": "criu", "runc": "runc",
	"keeper": "cryo-gpu-keeper", "cryo": "cryo", "ctr": "ctr",
	"program": "workload", // what runs in a container
}

// steps are files, below the host's directory, whose appearance marks a step of an operation.
var steps = map[string][]string{
	"work":    {"cryo/work/*"},
	"log":     {"cryo/work/*/*/dump.log", "cryo/work/*/*/restore.log", "run/containerd/io.containerd.runtime.v2.task/default/*/*/restore.log"},
	"dumped":  {"cryo/work/*/images/inventory.img"},
	"bundle":  {"run/containerd/io.containerd.runtime.v2.task/default/*"},
	"state":   {"run/containerd/runc/default/*"},
	"blob":    {"cryo/store/blobs/sha256/*"},
	"partial": {"cryo/partial/*", "cryo/store/partial/*"},
}

// event tells from now on whether a step has come.
func (r *round) event(name string) func() bool {
	h := r.host
	if command, ok := commands[name]; ok {
		return func() bool { return len(r.running(command, r.there)) > 0 }
	}
	switch name {
	case "tag": // the store's index is replaced
		path := filepath.Join(h.CryoRoot(), "store/index.json")
		before := inode(path)
		return func() bool { return inode(path) != before }
	case "end": // the container's first process ends
		path := fmt.Sprintf("/proc/%d/root/.", r.world.pid)
		return func() bool { _, err := os.Stat(path); return err != nil }
	}
	before := matches(h, name)
	return func() bool {
		for _, path := range matches(h, name) {
			if !slices.Contains(before, path) {
				return true
			}
		}
		return false
	}
}

func matches(h *lab.Host, step string) (found []string) {
	for _, pattern := range steps[step] {
		paths, _ := filepath.Glob(filepath.Join(h.Dir, pattern)) // the patterns are well formed
		found = append(found, paths...)
	}
	return found
}

func inode(path string) uint64 {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0
	}
	return s.Ino
}

// running lists the host's processes of a name but for those excluded.
func (r *round) running(command string, but map[int]bool) (found []int) {
	for _, p := range r.host.Running() {
		if p.Command == command && !but[p.PID] {
			found = append(found, p.PID)
		}
	}
	return found
}

// until polls a thousand times a second.
func until(ctx context.Context, is func() bool) bool {
	for !is() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Millisecond):
		}
	}
	return true
}
