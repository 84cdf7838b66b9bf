package main

import (
	"context"
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
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/arrival"
)

// workLabel marks what a command makes in containerd until it is finished. A command that is killed cannot undo it; the
// next one with the same root does.
const workLabel = "io.cryo.work"

// leaseTime is how long containerd keeps what a killed command has leased, where no other command removes it before.
const leaseTime = 24 * time.Hour

// mark is the label's value for a working directory: its path, and by which file system it is told from a directory of
// the same path that another mount namespace sees.
func mark(work string) string { return work + fileID(filepath.Dir(work)) }

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

// lease keeps what a command makes in containerd until done.
func lease(ctx context.Context, client *containerd.Client, work string) (_ context.Context, done func(context.Context) error, err error) {
	if err := context.Cause(ctx); err != nil {
		return ctx, nil, fmt.Errorf("lease: %w", err)
	}
	// A call that is cancelled may have been carried out, and nobody would know the lease.
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	leased, done, err := client.WithLease(making, leases.WithRandomID(), leases.WithExpiration(leaseTime),
		leases.WithLabels(map[string]string{workLabel: mark(work)}))
	if err != nil {
		return ctx, nil, fmt.Errorf("lease: %w", err)
	}
	id, _ := leases.FromContext(leased)
	return leases.WithLease(ctx, id), done, nil
}

// finished takes the mark from a container, and what was told to its shim.
func finished(ctx context.Context, container containerd.Container) error {
	err := container.Update(ctx, func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
		delete(c.Labels, workLabel)
		return forgetIn(c)
	})
	if err != nil {
		return fmt.Errorf("finish the container: %w", err)
	}
	return nil
}

// abandon removes a container that was not finished; a start that is under way is broken off. One that runs, and that has all of its memory here, has become
// whole before that, and stays.
func abandon(ctx context.Context, container containerd.Container, work string) (err error) {
	awaited, err := arrival.GiveUp(work)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(undoTime); ; time.Sleep(50 * time.Millisecond) {
		if err = tryAbandon(ctx, container, !awaited); err == nil {
			return arrival.Forget(work)
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

func tryAbandon(ctx context.Context, container containerd.Container, whole bool) error {
	switch status(ctx, container) {
	case containerd.Running, containerd.Paused, containerd.Pausing:
		if whole {
			return finished(ctx, container)
		}
	}
	if err := removeTask(ctx, container); err != nil {
		return err
	}
	return ignoreNotFound(container.Delete(ctx, containerd.WithSnapshotCleanup))
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

// sweepAlone waits until no other command removes what was abandoned, a shim's order above all: who came between would find a container gone and its task
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

// removeAbandoned removes what commands of the same root have left that were killed. Their working directories are swept
// already, work is this command's own.
func removeAbandoned(ctx context.Context, client *containerd.Client, work string) error {
	alone, err := sweepAlone(ctx, filepath.Dir(work))
	if err != nil {
		return err
	}
	defer alone.Close()
	own := fileID(filepath.Dir(work))
	abandoned := func(labels map[string]string) (left string, _ bool) {
		dir, ok := strings.CutSuffix(labels[workLabel], own)
		return dir, ok && own != "" && filepath.Dir(dir) == filepath.Dir(work) && !exists(dir)
	}
	marked := fmt.Sprintf("labels.%q", workLabel)
	found, err := client.Containers(ctx, marked)
	if err != nil {
		return fmt.Errorf("look for abandoned containers: %w", err)
	}
	var failed []error
	for _, container := range found {
		labels, err := container.Labels(ctx)
		if err != nil {
			continue // gone meanwhile
		}
		left, is := abandoned(labels)
		if !is {
			continue
		}
		if err := abandon(ctx, container, left); err != nil {
			failed = append(failed, fmt.Errorf("remove the abandoned container %s: %w", container.ID(), err))
		}
	}
	held, err := client.LeasesService().List(ctx, marked)
	if err != nil {
		return errors.Join(append(failed, fmt.Errorf("look for abandoned leases: %w", err))...)
	}
	for _, l := range held {
		if _, is := abandoned(l.Labels); !is {
			continue
		}
		// With what only the lease has kept: the name of its snapshot shall be free.
		if err := client.LeasesService().Delete(ctx, l, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("remove an abandoned lease: %w", err))
		}
	}
	return errors.Join(append(failed, forgetArrivals(ctx, client, filepath.Dir(work)))...)
}
