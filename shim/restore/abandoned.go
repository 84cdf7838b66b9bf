package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/daemon"
)

// Of undoing: how long it may take, and how long is between two looks at what will change soon.
const (
	undoTime = 60 * time.Second
	pollTime = 50 * time.Millisecond
)

// leaseTime is how long containerd keeps what a killed command has leased, where no other command removes it before.
const leaseTime = 24 * time.Hour

// Mark is the label's value for a working directory: its path, and the name of the store, by which it is told from a directory of the same path that another mount
// namespace sees. Both are the same after the host has booted.
func Mark(work string) string {
	id, err := store.ID(filepath.Dir(filepath.Dir(work)))
	if err != nil {
		return work // no store has it
	}
	return work + "@" + id
}

// Lease keeps what a command makes in containerd until done.
func Lease(ctx context.Context, client *containerd.Client, work string) (_ context.Context, done func(context.Context) error, err error) {
	if err := context.Cause(ctx); err != nil {
		return ctx, nil, fmt.Errorf("lease: %w", err)
	}
	// A call that is cancelled may have been carried out, and the lease would not be known.
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	leased, done, err := client.WithLease(making, leases.WithRandomID(), leases.WithExpiration(leaseTime),
		leases.WithLabels(map[string]string{daemon.WorkLabel: Mark(work)}))
	if err != nil {
		return ctx, nil, fmt.Errorf("lease: %w", err)
	}
	id, _ := leases.FromContext(leased)
	return leases.WithLease(ctx, id), done, nil
}

// Remove removes a container, its task and its root file system. It tries again for as long as undoTime.
func Remove(ctx context.Context, container containerd.Container) (err error) {
	for deadline := time.Now().Add(undoTime); ; time.Sleep(pollTime) {
		if err = RemoveTask(ctx, container); err == nil {
			err = IgnoreNotFound(container.Delete(ctx, containerd.WithSnapshotCleanup))
		}
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// RemoveTask ends and removes the task of a container, if it has one.
func RemoveTask(ctx context.Context, container containerd.Container) error {
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = task.Delete(ctx, containerd.WithProcessKill)
	return IgnoreNotFound(err)
}

// IgnoreNotFound returns an error of containerd's unless it is that there is no such thing.
func IgnoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// sweepAlone waits until no other process removes what was abandoned: a process that came between would find a container gone and its task
// not yet. The caller closes what it returns, which is locked.
func sweepAlone(ctx context.Context, works string) (*os.File, error) {
	dir, err := os.Open(works)
	if err != nil {
		return nil, fmt.Errorf("open the working directories: %w", err)
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock the working directories: %w", err), dir.Close())
		}
		select {
		case <-time.After(pollTime):
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), dir.Close())
		}
	}
}

// RemoveAbandoned removes what commands of the same root have left that were killed: containers of trials, and leases. Their working directories are swept
// already; work is one of the same root. It stops after [clearTime], since its caller waits to handle another container; the next command removes the rest.
func RemoveAbandoned(ctx context.Context, client *containerd.Client, work string) error {
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	alone, err := sweepAlone(ctx, filepath.Dir(work))
	if err != nil {
		return err
	}
	defer alone.Close()
	isAbandoned := func(mark string) bool {
		dir := directoryOf(mark, work)
		return dir != "" && !exists(dir)
	}
	marked := fmt.Sprintf("labels.%q", daemon.WorkLabel)
	found, err := client.Containers(ctx, marked)
	if err != nil {
		return fmt.Errorf("look for abandoned containers: %w", err)
	}
	var failed []error
	for _, container := range found {
		labels, err := container.Labels(ctx)
		if err != nil || !isAbandoned(labels[daemon.WorkLabel]) {
			continue // gone meanwhile, or another's
		}
		if err := Remove(ctx, container); err != nil {
			failed = append(failed, fmt.Errorf("remove the container %s, whose command has ended: %w", container.ID(), err))
		}
	}
	held, err := client.LeasesService().List(ctx, marked)
	if err != nil {
		return errors.Join(append(failed, fmt.Errorf("look for abandoned leases: %w", err))...)
	}
	for _, l := range held {
		if !isAbandoned(l.Labels[daemon.WorkLabel]) {
			continue
		}
		// With what only the lease has kept: the name of its snapshot shall be free.
		if err := IgnoreNotFound(client.LeasesService().Delete(ctx, l, leases.SynchronousDelete)); err != nil {
			failed = append(failed, fmt.Errorf("remove an abandoned lease: %w", err))
		}
	}
	return errors.Join(failed...)
}

// directoryOf returns the working directory in a mark; empty if it is not of the store of the directory work.
func directoryOf(mark, work string) string {
	dir, _, _ := strings.Cut(mark, "@")
	if filepath.Dir(dir) != filepath.Dir(work) || Mark(dir) != mark || mark == dir {
		return ""
	}
	return dir
}

// Forget removes what was told to the shim for one restore. It is no property of the container.
func Forget(spec *specs.Spec) {
	delete(spec.Annotations, gpu.DevicesAnnotation)
	delete(spec.Annotations, gpu.MapAnnotation)
}
