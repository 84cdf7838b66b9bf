package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hierarchy is one mounted cgroup hierarchy: the only one with cgroup v2, one a controller with v1.
type hierarchy struct {
	mount   string // where it is mounted
	unified bool   // cgroup v2
	options string // super block options, which name the controllers of v1
}

// hierarchies lists what is mounted, see proc_pid_mountinfo(5).
func hierarchies() ([]hierarchy, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var found []hierarchy
	for line := range strings.Lines(string(content)) {
		before, after, _ := strings.Cut(line, " - ")
		place, super := strings.Fields(before), strings.Fields(after)
		if len(place) > 4 && len(super) > 2 && strings.HasPrefix(super[0], "cgroup") {
			found = append(found, hierarchy{mount: place[4], unified: super[0] == "cgroup2", options: super[2]})
		}
	}
	if len(found) == 0 {
		return nil, &MissingError{"no cgroups are mounted", "mount -t cgroup2 none /sys/fs/cgroup"}
	}
	return found, nil
}

// makeCgroups makes the lab's cgroup in every hierarchy. The hosts' cgroups are below it, the containers' below theirs.
func (in *instance) makeCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var machine strings.Builder
	for _, h := range all {
		root := filepath.Join(h.mount, in.name())
		if err := h.enable(h.mount); err != nil {
			return err
		}
		if err := h.make(root); err != nil {
			return err
		}
		if err := h.enable(root); err != nil {
			return err
		}
		if err := h.make(filepath.Join(root, "machine")); err != nil {
			return err
		}
		fmt.Fprintln(&machine, filepath.Join(root, "machine/cgroup.procs"))
	}
	if err := os.WriteFile(in.cgroups(), []byte(machine.String()), 0o600); err != nil {
		return fmt.Errorf("write list of cgroups: %w", err)
	}
	return nil
}

// cgroups is a file with the cgroup.procs of the processes that belong to no host.
func (in *instance) cgroups() string { return filepath.Join(in.dir, "cgroups") }

// make makes a cgroup that can have members or children at once.
func (h hierarchy) make(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	// In v1 a cpuset starts empty, and an empty one takes no process.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if h.unified || !exists(filepath.Join(dir, name)) {
			continue
		}
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if err != nil {
			return fmt.Errorf("read cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), value, 0); err != nil {
			return fmt.Errorf("set cpuset: %w", err)
		}
	}
	return nil
}

// enable hands all of a v2 cgroup's controllers on to its children.
func (h hierarchy) enable(dir string) error {
	if !h.unified {
		return nil
	}
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	for _, c := range strings.Fields(string(controllers)) {
		// Some cannot be (cpu while real-time processes run): the container that needs one will say so.
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		if errors.Is(err, syscall.EBUSY) {
			return &MissingError{"cgroup " + dir + " has processes and so cannot have children with controllers", "run outside a container"}
		}
	}
	return nil
}

// removeCgroups kills all members and removes the cgroups; it waits for at most 20 seconds.
func (in *instance) removeCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		left := 0
		for _, h := range all {
			left += killTree(filepath.Join(h.mount, in.name()))
		}
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kill lab %d: %d processes or cgroups are left", in.number, left)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// killTree kills every process below a cgroup, removes the cgroups that are empty and counts what is left.
func killTree(root string) int {
	dirs := subtree(root)
	left := 0
	for i := len(dirs) - 1; i >= 0; i-- {
		thaw(dirs[i])
		for _, pid := range members(dirs[i]) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, os.ErrNotExist) {
			left++
		}
	}
	return left
}

// subtree lists a cgroup and all below it, parents first; nothing if there is none.
func subtree(root string) []string {
	var dirs []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// thaw lets members of a frozen v1 cgroup die.
func thaw(dir string) {
	if path := filepath.Join(dir, "freezer.state"); exists(path) {
		_ = os.WriteFile(path, []byte("THAWED"), 0)
	}
}

func members(dir string) []int {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range strings.Fields(string(content)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}
