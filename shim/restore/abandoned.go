package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/shim/daemon"
)

// Of undoing: how long it may take, and how long is between two looks at what will change soon.
const (
	undoTime = 60 * time.Second
	pollTime = 50 * time.Millisecond
)

// leaseTime is how long containerd keeps what a killed command has leased, where no other command removes it before.
const leaseTime = 24 * time.Hour

// Mark is the label's value for a working directory: its path, and by which file system it is told from a directory of
// the same path that another mount namespace sees.
func Mark(work string) string { return work + fileID(filepath.Dir(work)) }

// fileID is the end of a mark; empty if there is no such directory.
func fileID(dir string) string {
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("@%x.%x", stat.Dev, stat.Ino)
}

// Lease keeps what a command makes in containerd until done.
func Lease(ctx context.Context, client *containerd.Client, work string) (_ context.Context, done func(context.Context) error, err error) {
	if err := context.Cause(ctx); err != nil {
		return ctx, nil, fmt.Errorf("lease: %w", err)
	}
	// A call that is cancelled may have been carried out, and nobody would know the lease.
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

// finished takes the mark from a container, and what was told to its shim.
func finished(ctx context.Context, container containerd.Container) error {
	err := container.Update(ctx, func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
		delete(c.Labels, daemon.WorkLabel)
		return forgetIn(c)
	})
	if err != nil {
		return fmt.Errorf("finish the container: %w", err)
	}
	return nil
}

// abandon removes a container whose restore was not finished, and ends a start that is under way. A container that runs stays: a user may have been told that it runs.
func abandon(ctx context.Context, container containerd.Container) error {
	return remove(ctx, container, func() bool {
		switch status(ctx, container) {
		case containerd.Running, containerd.Paused, containerd.Pausing:
			return true
		}
		return false
	})
}

// undo removes a container that has not run yet.
func undo(ctx context.Context, container containerd.Container) error {
	return remove(ctx, container, func() bool { return false })
}

// remove removes a container, unless stays says that it is to be kept.
func remove(ctx context.Context, container containerd.Container, stays func() bool) (err error) {
	for deadline := time.Now().Add(undoTime); ; time.Sleep(pollTime) {
		if stays() {
			err = finished(ctx, container)
		} else if err = RemoveTask(ctx, container); err == nil {
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

// IgnoreNotFound gives an error of containerd's unless it is that there is no such thing.
func IgnoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// status is that of a container's task; empty if it has none.
func status(ctx context.Context, container containerd.Container) containerd.ProcessStatus {
	task, err := container.Task(ctx, nil)
	if err != nil {
		return ""
	}
	status, err := task.Status(ctx)
	if err != nil {
		return ""
	}
	return status.Status
}

// sweepAlone waits until nobody else removes what was abandoned: who came between would find a container gone and its task
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

// RemoveAbandoned removes what commands of the same root have left that were killed. Their working directories are swept
// already; work is one of the same root.
func RemoveAbandoned(ctx context.Context, client *containerd.Client, work string) error {
	own := fileID(filepath.Dir(work))
	return eachMarked(ctx, client, work, abandon, func(mark string) bool {
		dir, ok := strings.CutSuffix(mark, own)
		return ok && own != "" && filepath.Dir(dir) == filepath.Dir(work) && !exists(dir)
	})
}

// eachOwn calls do for the container that is labelled with this working directory, and deletes the lease that is.
func eachOwn(ctx context.Context, client *containerd.Client, work string, do func(context.Context, containerd.Container) error) error {
	own := Mark(work)
	return eachMarked(ctx, client, work, do, func(mark string) bool { return mark == own })
}

// eachMarked calls do for each container whose label [daemon.WorkLabel] is accepts, and deletes the leases whose label it accepts.
func eachMarked(ctx context.Context, client *containerd.Client, work string, do func(context.Context, containerd.Container) error, is func(mark string) bool) error {
	alone, err := sweepAlone(ctx, filepath.Dir(work))
	if err != nil {
		return err
	}
	defer alone.Close()
	marked := fmt.Sprintf("labels.%q", daemon.WorkLabel)
	found, err := client.Containers(ctx, marked)
	if err != nil {
		return fmt.Errorf("look for abandoned containers: %w", err)
	}
	var failed []error
	for _, container := range found {
		labels, err := container.Labels(ctx)
		if err != nil || !is(labels[daemon.WorkLabel]) {
			continue // gone meanwhile, or another's
		}
		if err := do(ctx, container); err != nil {
			failed = append(failed, fmt.Errorf("finish or remove the container %s, whose command has ended: %w", container.ID(), err))
		}
	}
	held, err := client.LeasesService().List(ctx, marked)
	if err != nil {
		return errors.Join(append(failed, fmt.Errorf("look for abandoned leases: %w", err))...)
	}
	for _, l := range held {
		if !is(l.Labels[daemon.WorkLabel]) {
			continue
		}
		// With what only the lease has kept: the name of its snapshot shall be free.
		if err := IgnoreNotFound(client.LeasesService().Delete(ctx, l, leases.SynchronousDelete)); err != nil {
			failed = append(failed, fmt.Errorf("remove an abandoned lease: %w", err))
		}
	}
	return errors.Join(failed...)
}

// Forget removes what was told to the shim for one restore. It is no property of the container.
func Forget(spec *specs.Spec) {
	delete(spec.Annotations, cdi.Annotation)
	delete(spec.Annotations, gpu.MapAnnotation)
}

// forgetIn does so in containerd's record of a container.
func forgetIn(c *containers.Container) error {
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec.GetValue(), &spec); err != nil {
		return fmt.Errorf("read the runtime specification: %w", err)
	}
	if _, told := spec.Annotations[cdi.Annotation]; !told {
		return nil
	}
	Forget(&spec)
	packed, err := typeurl.MarshalAnyToProto(&spec)
	if err != nil {
		return fmt.Errorf("write the runtime specification: %w", err)
	}
	c.Spec = packed
	return nil
}
