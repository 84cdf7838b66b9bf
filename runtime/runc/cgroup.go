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

// cgroups reads what runc has noted. Source: runc, libcontainer, State of container_linux.go.
func (c Container) cgroups() (cgroups, error) {
	data, err := os.ReadFile(filepath.Join(c.Runtime.Root, c.ID, "state.json"))
	if err != nil {
		return nil, fmt.Errorf("read runc's state of %s: %w", c.ID, err)
	}
	var state struct {
		Cgroups cgroups `json:"cgroup_paths"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return nil, fmt.Errorf("read runc's state of %s: %w", c.ID, err)
	}
	return state.Cgroups, nil
}

// dir gives the directory of a controller.
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

// frozen tells whether somebody has the cgroup frozen. Sources: Linux, cgroup-v1/freezer-subsystem.rst and cgroup-v2.rst.
func (g cgroups) frozen() (bool, error) {
	dir, err := g.dir("freezer")
	if err != nil {
		return false, err
	}
	file, running := "cgroup.freeze", "0"
	if dir == g["freezer"] {
		file, running = "freezer.state", "THAWED"
	}
	data, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(data)) != running, err
}

// freezeTime is how long it may take until all processes stand still, as for runc.
var freezeTime = 10 * time.Second

// freeze freezes a cgroup of version 2; of another the error is of kind NotImplemented.
func (g cgroups) freeze(ctx context.Context) error {
	if err := g.order("1"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, freezeTime, fmt.Errorf("its processes do not stand still after %s: %w", freezeTime, errdefs.ErrUnavailable))
	defer cancel()
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		events, err := os.ReadFile(filepath.Join(g[""], "cgroup.events"))
		if err == nil && slices.Contains(strings.Split(string(events), "\n"), "frozen 1") {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			err = errors.Join(err, context.Cause(ctx))
		}
		if err != nil {
			return errors.Join(fmt.Errorf("freeze the cgroup: %w", err), g.thaw())
		}
	}
}

// thaw lets the processes of a cgroup of version 2 go on.
func (g cgroups) thaw() error { return g.order("0") }

// order asks for a cgroup of version 2 to be frozen or not.
func (g cgroups) order(what string) error {
	if len(g) != 1 || !filepath.IsAbs(g[""]) {
		return fmt.Errorf("freeze the cgroup: %w", errdefs.ErrNotImplemented)
	}
	f, err := os.OpenFile(filepath.Join(g[""], "cgroup.freeze"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("freeze the cgroup: %w", err)
	}
	_, err = f.WriteString(what)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("freeze the cgroup: %w", err)
	}
	return nil
}
