package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// CgroupFile reads a file of a process's cgroup: with cgroup v1 that of a controller, with v2 one that has another name.
// It is trimmed.
func CgroupFile(pid int, controller, v1, v2 string) (string, error) {
	all, err := hierarchies()
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("find cgroup: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		// Number, controllers and path, see cgroups(7).
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, h := range all {
			name := v1
			switch {
			case h.unified && fields[1] == "":
				name = v2
			case h.unified, !slices.Contains(strings.Split(fields[1], ","), controller), !slices.Contains(strings.Split(h.options, ","), controller):
				continue
			}
			content, err := os.ReadFile(filepath.Join(h.mount, fields[2], name))
			if err != nil {
				return "", fmt.Errorf("read cgroup: %w", err)
			}
			return strings.TrimSpace(string(content)), nil
		}
	}
	return "", fmt.Errorf("find cgroup: process %d has none of controller %s", pid, controller)
}
