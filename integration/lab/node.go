package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Node makes a host one that Kubernetes can have as a node: it has a name of its own, a containerd with the CRI plugin,
// and all that is written below /etc, /opt, /var/lib and /var/log is its own. What the machine has there it sees.
type Node struct {
	// Files are those it has from the start, by their absolute paths, which are below one of the directories above.
	Files map[string]string
}

// nodeDir is what a node writes: upper/ below the directories that it shares with the machine, disk/ the volumes and logs of pods.
func (h *Host) nodeDir() string { return filepath.Join(h.Dir, "node") }

// furnish writes the node's files where they are when its namespaces are made.
func (h *Host) furnish() error {
	for path, content := range h.options.Node.Files {
		path = filepath.Join(h.nodeDir(), "upper", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write node's files: %w", err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write node's files: %w", err)
		}
	}
	return nil
}

// Root is the host's view of the file system, as a path of the machine.
func (h *Host) Root() string { return filepath.Join("/proc", fmt.Sprint(h.Pid()), "root") }

// ownCgroup says whether a cgroup, relative to the host's, is one that an idle host may have: its programs', a parent of containers' as runc leaves it,
// and on a node those that kubelet keeps.
func (h *Host) ownCgroup(path string) bool {
	if h.options.Node != nil && (path == "kubepods" || strings.HasPrefix(path, "kubepods/")) {
		return !strings.Contains(path, "/pod")
	}
	return !strings.Contains(path, "/")
}
