package daemon

import (
	"context"
	"fmt"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/shim/worker"
)

// Statuses of a container that are not containerd's.
const (
	lost   = "lost" // its shim has ended it, since it could not go on
	noTask = "none" // it has no task
)

// Container is one of cryo's runtime.
type Container struct {
	ID        string             `json:"container"`
	Name      string             `json:"name"` // nerdctl's, else the container's
	Status    string             `json:"status"`
	PID       uint32             `json:"pid"`                 // 0: it has no process
	Snapshot  string             `json:"snapshot,omitempty"`  // digest of the one that it was restored from, else of the last that was taken while it ran on
	Reference string             `json:"reference,omitempty"` // by which it was restored
	Memory    *worker.MemoryNote `json:"memory,omitempty"`    // of a restored container whose memory comes while it runs
	Lost      string             `json:"lost,omitempty"`      // the reason why the shim ended it
}

// List returns the containers of cryo's runtime in a namespace, those that have ended included. address is the path of containerd's socket.
func List(ctx context.Context, client *containerd.Client, address, namespace string) ([]Container, error) {
	found, err := client.Containers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	bundles := Bundles(address, namespace)
	all := []Container{}
	for _, container := range found {
		c, ours, err := lookAt(ctx, container, bundles)
		if errdefs.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("look at container %s: %w", container.ID(), err)
		}
		if ours {
			all = append(all, c)
		}
	}
	return all, nil
}

// lookAt returns what there is to say of a container, and whether it is one of cryo's runtime.
func lookAt(ctx context.Context, container containerd.Container, bundles string) (c Container, ours bool, err error) {
	info, err := container.Info(ctx)
	if err != nil {
		return c, false, err
	}
	c = Container{ID: info.ID, Name: info.ID, Status: noTask, Reference: info.Labels[ReferenceLabel]}
	if name := info.Labels[NameLabel]; name != "" {
		c.Name = name
	}
	for _, name := range []string{RestoredExtension, CheckpointExtension} {
		if c.Snapshot == "" {
			c.Snapshot = DigestIn(info, name).String()
		}
	}
	task, err := container.Task(ctx, nil)
	if err == nil {
		c.PID = task.Pid()
		var s containerd.Status
		if s, err = task.Status(ctx); err == nil {
			c.Status = string(s.Status)
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return c, false, err
	}
	if !OurShim(info.Runtime.Name, c.PID) {
		return c, false, nil
	}
	if bundles == "" {
		return c, true, nil
	}
	bundle := filepath.Join(bundles, info.ID)
	if c.Memory, err = worker.ReadMemoryNote(bundle); c.Memory != nil && c.Memory.Lost != "" {
		c.Status = lost
		c.Lost, c.Memory.Lost = c.Memory.Lost, ""
	}
	if c.Status == lost || c.Status == string(containerd.Stopped) {
		c.PID = 0
	}
	return c, true, err
}
