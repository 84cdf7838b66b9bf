package shim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/oom"
	oomv1 "github.com/containerd/containerd/v2/pkg/oom/v1"
	oomv2 "github.com/containerd/containerd/v2/pkg/oom/v2"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/shim/worker"
)

// adopt finds the cgroup of a restored container's first process. The stock service looks for it at Create only, when
// such a container has no process yet.
func (s *service) adopt(c *container, pid int) error {
	cgroup, err := worker.CgroupOf(pid)
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

// watchOOM returns what publishes OOM events of restored containers. It costs nothing until there is one.
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

// removeHybrid removes the empty cgroup of version 2 that runc leaves behind on hosts with both versions when a killed process ends slowly. dir is what runc has noted for the
// container; empty if nothing.
func removeHybrid(dir string) {
	if dir == "" || cgroups.Mode() != cgroups.Hybrid {
		return
	}
	for deadline := time.Now().Add(time.Second); unix.Rmdir(dir) == unix.EBUSY && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
}
