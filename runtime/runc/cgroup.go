package runc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// cgroups are the directories of a container's cgroup, by controller; "" is that of version 2. To start runc takes it 5 ms and more, which a container
// that stands still would have to wait for.
type cgroups map[string]string

// state is what runc has noted of a container. Source: runc, libcontainer, State of container_linux.go.
type state struct {
	PID     int     `json:"init_process_pid"`
	Cgroups cgroups `json:"cgroup_paths"`
	Config  struct {
		Labels []string `json:"labels"`
	} `json:"config"`
}

func (c Container) state() (s state, err error) {
	data, err := os.ReadFile(filepath.Join(c.Runtime.Root, c.ID, stateFile))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("read runc's state of %s: %w", c.ID, err)
	}
	return s, nil
}

func (c Container) cgroups() (cgroups, error) {
	s, err := c.state()
	return s.Cgroups, err
}

// Unified is the directory of the container's cgroup of version 2, as runc has noted it; empty if runc knows none.
func (c Container) Unified() string {
	groups, _ := c.cgroups() // the zero value where there is no state
	if dir := groups[""]; filepath.IsAbs(dir) {
		return dir
	}
	return ""
}

// dir returns the directory of a controller.
func (g cgroups) dir(controller string) (string, error) {
	for _, name := range []string{controller, ""} {
		if dir := g[name]; filepath.IsAbs(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("find the cgroup: %w", errdefs.ErrNotFound)
}

// processes lists those in the cgroup and below it, as runc does.
func (g cgroups) processes() (pids []int, err error) {
	dir, err := g.dir("devices")
	if err != nil {
		return nil, err
	}
	return inside(dir)
}

// inside lists the processes of a cgroup and of those below it. Its error is a [fs.ErrNotExist] or ENODEV if there is no such cgroup.
func inside(dir string) (pids []int, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			return nil
		}
		var data []byte
		if err == nil {
			data, err = os.ReadFile(filepath.Join(path, "cgroup.procs"))
		}
		if err != nil && path != dir && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)) {
			return nil // it was removed
		}
		for _, text := range strings.Fields(string(data)) {
			pid, wrong := strconv.Atoi(text)
			err = errors.Join(err, wrong)
			pids = append(pids, pid)
		}
		return err
	})
	return pids, err
}

// freezer returns the file that says whether the cgroup is frozen, and its contents if it is not. Sources: Linux, cgroup-v1/freezer-subsystem.rst
// and cgroup-v2.rst.
func (g cgroups) freezer() (path, running string, err error) {
	dir, err := g.dir("freezer")
	if err != nil {
		return "", "", err
	}
	if dir == g["freezer"] {
		return filepath.Join(dir, "freezer.state"), "THAWED", nil
	}
	return filepath.Join(dir, "cgroup.freeze"), "0", nil
}

// frozen reports whether the cgroup is frozen.
func (g cgroups) frozen() (bool, error) {
	path, running, err := g.freezer()
	if err != nil {
		return false, err
	}
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)) != running, err
}

// thawWait is how long the kernel may take to thaw, and how long a process that is being ended may freeze it again.
var thawWait = 5 * time.Second

// thaw lets the processes go on, and looks that they do.
func (g cgroups) thaw(ctx context.Context) error {
	path, running, err := g.freezer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, thawWait, fmt.Errorf("it is still frozen after %s: %w", thawWait, errdefs.ErrUnavailable))
	defer cancel()
	err = until(ctx, func() (bool, error) {
		frozen, err := g.frozen()
		if err != nil || !frozen {
			return !frozen, err
		}
		return false, write(path, running)
	})
	if err != nil {
		return fmt.Errorf("thaw the cgroup: %w", err)
	}
	return nil
}

// until calls done, in growing intervals, until it says that it is, or fails.
func until(ctx context.Context, done func() (bool, error)) error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if yes, err := done(); yes || err != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// freezeTime is how long it may take until all processes stand still, as for runc.
var freezeTime = 10 * time.Second

// freeze freezes a cgroup of version 2; of another the error is of kind NotImplemented.
func (g cgroups) freeze(ctx context.Context) error {
	if len(g) != 1 || !filepath.IsAbs(g[""]) {
		return fmt.Errorf("freeze the cgroup: %w", errdefs.ErrNotImplemented)
	}
	if err := write(filepath.Join(g[""], "cgroup.freeze"), "1"); err != nil {
		return fmt.Errorf("freeze the cgroup: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, freezeTime, fmt.Errorf("its processes do not stand still after %s: %w", freezeTime, errdefs.ErrUnavailable))
	defer cancel()
	err := until(ctx, func() (bool, error) {
		events, err := os.ReadFile(filepath.Join(g[""], "cgroup.events"))
		return slices.Contains(strings.Split(string(events), "\n"), "frozen 1"), err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("freeze the cgroup: %w", err), g.thaw(context.WithoutCancel(ctx)))
	}
	return nil
}

// write writes to a file of a cgroup, which must exist.
func write(path, what string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(what)
	return errors.Join(err, f.Close())
}
