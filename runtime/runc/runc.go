package runc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// Container is one container as runc knows it.
type Container struct {
	ID     string
	Bundle string
	Mark   string // the value of [MarkAnnotation] in the bundle's specification; empty: it has none
	// Runtime is how runc is called; its log must be of JSON format.
	Runtime *gorunc.Runc
}

// Pause freezes the container's cgroup.
func (c Container) Pause(ctx context.Context) error {
	if groups, err := c.cgroups(); err == nil {
		if frozen, err := groups.frozen(); err == nil && !frozen {
			if err := groups.freeze(ctx); !errdefs.IsNotImplemented(err) {
				return err
			}
		}
	}
	for try := 1; ; try++ {
		err := c.explain("pause", c.Runtime.Pause(ctx, c.ID))
		if err == nil || try == pauseTries || !strings.HasSuffix(err.Error(), unableToFreeze) {
			return err
		}
		select {
		case <-time.After(pauseRest):
		case <-ctx.Done():
			return err
		}
	}
}

// runc writes to a freezer of cgroup v1 a thousand times in a row at most. Where all processors are in use, some of the container's processes do not get one in that time, and runc lets the container go on.
const (
	unableToFreeze = "unable to freeze" // ends runc's message then; source: github.com/opencontainers/cgroups, fs/freezer.go
	pauseTries     = 10
	pauseRest      = 100 * time.Millisecond // between two tries
)

// Resume thaws the container's cgroup.
func (c Container) Resume(ctx context.Context) error {
	return c.explain("resume", c.Runtime.Resume(ctx, c.ID))
}

// Paused reports whether the container's cgroup is frozen.
func (c Container) Paused(ctx context.Context) (bool, error) {
	state, err := c.Runtime.State(ctx, c.ID)
	if err != nil {
		return false, c.explain("state", err)
	}
	return state.Status == "paused", nil
}

// stateFile has what runc knows of a container, in the container's directory below its root. Source: runc, libcontainer/container_linux.go.
const stateFile = "state.json"

// Known reports whether runc has a container of this name, whoever made it.
func (c Container) Known() bool {
	_, err := os.Lstat(filepath.Join(c.Runtime.Root, c.ID, stateFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// Thaw makes a frozen container run; a container that is not frozen, or is gone, is left as it is.
func (c Container) Thaw(ctx context.Context) error {
	if groups, err := c.cgroups(); err == nil {
		if _, err := groups.frozen(); err == nil {
			return groups.thaw(ctx)
		}
	}
	return c.thaw(ctx) // it may have ended, and its cgroup is still frozen
}

// thaw goes by what runc says of the container.
func (c Container) thaw(ctx context.Context) error {
	paused, err := c.Paused(ctx)
	switch {
	case err != nil && strings.Contains(err.Error(), "does not exist"): // runc's words; it has no exit code of its own
		return nil
	case err != nil:
		return err
	case !paused:
		return nil
	}
	return c.Resume(ctx)
}

// Kill ends every process of the container, also of a frozen one.
func (c Container) Kill(ctx context.Context) error {
	err := c.explain("kill", c.Runtime.Kill(ctx, c.ID, int(unix.SIGKILL), &gorunc.KillOpts{}))
	// cgroup v1 delivers the signal only after thawing.
	return errors.Join(err, c.thaw(ctx))
}

// explain replaces the exit status of runc by the last error of its log.
func (c Container) explain(verb string, err error) error {
	if err == nil {
		return nil
	}
	if reason := lastError(c.Runtime.Log); reason != "" {
		return fmt.Errorf("runc %s %s: %s", verb, c.ID, reason)
	}
	return fmt.Errorf("runc %s %s: %w", verb, c.ID, err)
}

// lastError returns the message of the last entry of level error in a runc log in JSON format; empty if there is none.
func lastError(path string) string {
	if path == "" {
		return ""
	}
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return ""
	}
	defer f.Close()
	var last string
	for d := json.NewDecoder(f); d.More(); {
		var entry struct{ Level, Msg string }
		if d.Decode(&entry) != nil {
			break
		}
		if entry.Level == "error" {
			last = strings.TrimSpace(entry.Msg)
		}
	}
	return last
}
