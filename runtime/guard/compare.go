package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
)

// What a difference is about. The words are those of cryo restore --allow.
const (
	Mounts       = "mounts"
	Devices      = "devices"
	Capabilities = "capabilities"
	Namespaces   = "namespaces"
	Privileges   = "privileges"
)

// AllGrants stands for all of these.
const AllGrants = "all"

// Container is what was granted.
type Container struct {
	Spec   *specs.Spec
	Rootfs string   // on the host
	Allow  []string // what may differ from the specification, because the user who restores allows it
	// User has every process be the specification's user, where that is not root: the specification is not the snapshot's, which had a user of its own.
	User bool
}

// most is how many differences an error names.
var most = 8

// refused returns the error of a container that has what it was not granted. Its kind is PermissionDenied.
func refused(differences []string) error {
	text := strings.Join(differences[:min(most, len(differences))], "; ")
	if more := len(differences) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return failure.New(errdefs.ErrPermissionDenied, "do not trust this snapshot; cryo inspect tells more of it",
		"the container was ended before it ran, since it had what its specification does not grant: %s", text)
}

// Compare compares the container whose first process is init, as CRIU, which is in the container's cgroup, has restored it, with what it was granted. It lowers limits
// and scores where only these are higher, covers files that the specification hides, and has symlinks followed in all mounts. A difference is an error of kind PermissionDenied.
func Compare(init, criu int, c Container) error {
	k := &check{Container: c, capabilities: granted(c.Spec), found: map[string]bool{}}
	if k.Spec.Process == nil {
		k.Spec.Process = &specs.Process{}
	}
	if k.Spec.Linux == nil {
		k.Spec.Linux = &specs.Linux{}
	}
	pids, err := ProcessesOf(init)
	if err != nil {
		return err
	}
	if k.cgroups, err = cgroupsOf(fmt.Sprintf("/proc/%d/cgroup", criu)); err != nil {
		return err
	}
	views := map[string]view{} // by mount namespace
	for _, pid := range pids {
		living, err := k.process(pid)
		if err != nil {
			return err
		}
		if !living {
			continue
		}
		namespace, err := k.namespaces(pid)
		if err != nil {
			return err
		}
		v, seen := views[namespace]
		if !seen {
			var closed func()
			if v, closed, err = viewOf(pid); err != nil {
				return err
			}
			defer closed()
			views[namespace] = v
		}
		if err := errors.Join(k.files(pid, v), k.hidden(pid)); err != nil {
			return err
		}
	}
	for _, v := range views {
		if err := k.mounts(v); err != nil {
			return err
		}
	}
	if err := errors.Join(k.peers(pids), k.values(groupRoot), k.program(groupRoot)); err != nil {
		return err
	}
	if len(k.differences) > 0 {
		return refused(k.differences)
	}
	if err := k.cover(); err != nil {
		return err
	}
	for _, v := range views {
		if err := k.follow(v); err != nil {
			return err
		}
	}
	return nil
}

type check struct {
	Container
	capabilities uint64
	cgroups      map[string]string // the container's, by hierarchy
	differences  []string
	uncovered    []uncovered
	found        map[string]bool
}

// differ notes what was not allowed.
func (k *check) differ(grant, format string, a ...any) {
	if slices.Contains(k.Allow, grant) || slices.Contains(k.Allow, AllGrants) {
		return
	}
	if what := fmt.Sprintf(format, a...); !k.found[what] {
		k.found[what] = true
		k.differences = append(k.differences, what)
	}
}

// granted is the set of capabilities that a process of the container may have.
func granted(spec *specs.Spec) (set uint64) {
	if spec.Process == nil || spec.Process.Capabilities == nil {
		return 0
	}
	c := spec.Process.Capabilities
	known := cap.Known()
	for _, names := range [][]string{c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient} {
		for _, name := range names {
			if i := slices.Index(known, name); i >= 0 {
				set |= 1 << i
			}
		}
	}
	return set
}

// ProcessesOf lists a process and all that come from it.
func ProcessesOf(init int) (pids []int, err error) {
	for todo := []int{init}; len(todo) > 0; todo = todo[1:] {
		pids = append(pids, todo[0])
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/children", todo[0]))
		if err != nil || len(tasks) == 0 {
			return nil, fmt.Errorf("list the children of process %d: there are none of its threads: %w", todo[0], err)
		}
		for _, task := range tasks {
			data, err := os.ReadFile(task)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list restored processes: %w", err)
			}
			for word := range strings.FieldsSeq(string(data)) {
				pid, err := strconv.Atoi(word)
				if err != nil {
					return nil, fmt.Errorf("list restored processes: %q: %w", data, err)
				}
				todo = append(todo, pid)
			}
		}
	}
	return pids, nil
}

// ComesFrom reports whether a process comes from another one. Source: proc_pid_status(5).
func ComesFrom(pid, from int) bool {
	for range 1000 { // more than any container has above another
		s, err := status(fmt.Sprintf("/proc/%d", pid))
		if err != nil {
			return false
		}
		if pid, err = strconv.Atoi(s["PPid"]); err != nil || pid == 0 {
			return false
		}
		if pid == from {
			return true
		}
	}
	return false
}
