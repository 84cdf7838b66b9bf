package gpu

import (
	"os"
	"path/filepath"
	"strings"
)

// cgroupRoots are the directories of the cgroup hierarchies, below root, in which this process is not in the first group. Where that of version 2 is only
// the first of a namespace, as in a container, it is left out: with a process in it, it could give its children no controllers.
func cgroupRoots(root string) (paths []string) {
	data, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 || parts[2] == "/" {
			continue
		}
		name := strings.TrimPrefix(parts[1], "name=")
		path := filepath.Join(root, "sys/fs/cgroup", name)
		if name == "" { // version 2, which may stand beside version 1
			if unified := filepath.Join(path, "unified"); isDir(unified) {
				path = unified
			}
			if _, err := os.Stat(filepath.Join(path, "cgroup.type")); err == nil { // the machine's own first group has none
				continue
			}
		}
		paths = append(paths, path)
	}
	return paths
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
