package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/oom"
	oomv1 "github.com/containerd/containerd/v2/pkg/oom/v1"
	oomv2 "github.com/containerd/containerd/v2/pkg/oom/v2"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/shim/restorer"
)

// adopt finds the cgroup of a restored container's first process. The stock service looks for it at Create only, when
// such a container has no process yet.
func (s *service) adopt(c *container, pid int) error {
	cgroup, err := restorer.CgroupOf(pid)
	if err != nil {
		return err
	}
	c.cgroup.Store(cgroup)
	watcher, err := s.oom()
	if err == nil {
		err = watcher.Add(c.request.ID, cgroup)
	}
	if err != nil {
		return fmt.Errorf("watch %s for OOM: %w", c.request.ID, err)
	}
	return nil
}

// watchOOM gives what publishes OOM events of restored containers. It costs nothing until there is one.
func watchOOM(ctx context.Context, publisher events.Publisher) func() (oom.Watcher, error) {
	return sync.OnceValues(func() (oom.Watcher, error) {
		create := oomv1.New
		if cgroups.Mode() == cgroups.Unified {
			create = oomv2.New
		}
		watcher, err := create(publisher)
		if err != nil {
			return nil, err
		}
		go watcher.Run(ctx)
		return watcher, nil
	})
}

// removeCgroup ends what is left in the cgroup that a bundle names, and removes it. Those that systemd manages it removes.
func removeCgroup(dir string) error {
	spec, err := bundle{dir: dir}.spec()
	if err != nil {
		return err
	}
	if spec.Linux == nil || !strings.HasPrefix(spec.Linux.CgroupsPath, "/") {
		return nil
	}
	path := filepath.Clean(spec.Linux.CgroupsPath)
	if path == "/" {
		return nil // which is not the container's
	}
	if cgroups.Mode() == cgroups.Unified {
		m, err := cgroup2.Load(path)
		if err != nil {
			return fmt.Errorf("load cgroup %s: %w", path, err)
		}
		if err := m.Kill(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("end cgroup %s: %w", path, err)
		}
		if err := m.Delete(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cgroup %s: %w", path, err)
		}
		return nil
	}
	cg, err := cgroup1.Load(cgroup1.StaticPath(path))
	if errors.Is(err, cgroup1.ErrCgroupDeleted) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("load cgroup %s: %w", path, err)
	}
	for _, sub := range cg.Subsystems() {
		processes, err := cg.Processes(sub.Name(), true)
		if err != nil {
			continue // there is no such directory
		}
		for _, p := range processes {
			_ = unix.Kill(p.Pid, unix.SIGKILL)
		}
	}
	return cg.Delete()
}

// hybrid is where the cgroups of version 2 are on hosts that have both versions.
const hybrid = "/sys/fs/cgroup/unified"

// removeHybrid removes the empty cgroup of version 2 that runc leaves behind on hosts with both versions when a killed process ends slowly.
func removeHybrid(dir string) {
	spec, err := bundle{dir: dir}.spec()
	if err != nil || cgroups.Mode() != cgroups.Hybrid || spec.Linux == nil || !strings.HasPrefix(spec.Linux.CgroupsPath, "/") {
		return
	}
	path := filepath.Join(hybrid, filepath.Clean(spec.Linux.CgroupsPath))
	for deadline := time.Now().Add(time.Second); unix.Rmdir(path) == unix.EBUSY && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
}
