package lab

import (
	"path/filepath"
	"slices"
)

// Processes lists the ids of all that run on the host, its init and its daemon included.
func (h *Host) Processes() []int {
	var pids []int
	for _, dir := range h.cgroups() {
		pids = append(pids, members(dir)...)
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// CRIU is the path of the program the lab's hosts run.
func (l *Lab) CRIU() string { return filepath.Join(l.criu, "criu") }
