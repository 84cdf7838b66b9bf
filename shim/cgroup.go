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
)

// cgroupHandle is a cgroup1.Cgroup or a *cgroup2.Manager.
type cgroupHandle struct{ cgroup any }

// adopt finds the cgroup of a restored container's first process. The stock service looks for it at Create only, when
// such a container has no process yet.
func (s *service) adopt(c *container, pid int) error {
	handle, err := loadCgroup(pid)
	if err != nil {
		return err
	}
	c.cgroup.Store(handle)
	return s.oom.add(c.request.ID, handle)
}

func loadCgroup(pid int) (cgroupHandle, error) {
	if cgroups.Mode() == cgroups.Unified {
		path, err := cgroup2.PidGroupPath(pid)
		if err != nil {
			return cgroupHandle{}, fmt.Errorf("find the cgroup of process %d: %w", pid, err)
		}
		m, err := cgroup2.Load(path)
		if err != nil {
			return cgroupHandle{}, fmt.Errorf("load cgroup %s: %w", path, err)
		}
		return cgroupHandle{m}, nil
	}
	cg, err := cgroup1.Load(cgroup1.PidPath(pid))
	if err != nil {
		return cgroupHandle{}, fmt.Errorf("load the cgroup of process %d: %w", pid, err)
	}
	return cgroupHandle{cg}, nil
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

// stats reads the cgroup's counters in the form containerd's metrics have.
func (h cgroupHandle) stats() (any, error) {
	switch cg := h.cgroup.(type) {
	case cgroup1.Cgroup:
		return cg.Stat(cgroup1.IgnoreNotExist)
	case *cgroup2.Manager:
		return cg.Stat()
	}
	return nil, fmt.Errorf("cgroup of type %T", h.cgroup)
}

// oomWatcher publishes OOM events of restored containers. It costs nothing until there is one.
type oomWatcher struct {
	ctx       context.Context // the shim's life
	publisher events.Publisher

	mu      sync.Mutex
	watcher oom.Watcher // guarded by mu
}

func (w *oomWatcher) add(id string, h cgroupHandle) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watcher == nil {
		create := oomv1.New
		if cgroups.Mode() == cgroups.Unified {
			create = oomv2.New
		}
		watcher, err := create(w.publisher)
		if err != nil {
			return fmt.Errorf("watch for OOM: %w", err)
		}
		w.watcher = watcher
		go watcher.Run(w.ctx)
	}
	if err := w.watcher.Add(id, h.cgroup); err != nil {
		return fmt.Errorf("watch %s for OOM: %w", id, err)
	}
	return nil
}
