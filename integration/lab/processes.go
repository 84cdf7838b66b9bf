package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Process is one of a host's.
type Process struct {
	PID     int
	Command string // see proc_pid_comm(5)
}

// Processes lists the ids of all that run on the host, its init and its daemon included.
func (h *Host) Processes() []int {
	var pids []int
	for _, dir := range h.cgroups() {
		pids = append(pids, members(dir)...)
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// Running lists the same with their names, as fast as can be: of one hierarchy of cgroups, which has them all.
func (h *Host) Running() (found []Process) {
	for _, dir := range subtree(h.CgroupRoot()) {
		for _, pid := range members(dir) {
			if command, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
				found = append(found, Process{pid, strings.TrimSpace(string(command))})
			}
		}
	}
	return found
}

// CRIU is the path of the program the lab's hosts run.
func (l *Lab) CRIU() string { return filepath.Join(l.criu, "criu") }
