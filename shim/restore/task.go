package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/shim/daemon"
)

// runtimeOptions tell the shim how cgroups are managed, which it would else not know of a container that is restored.
func runtimeOptions(spec *specs.Spec) *options.Options {
	systemd := spec.Linux != nil && strings.Count(spec.Linux.CgroupsPath, ":") == 2
	return &options.Options{SystemdCgroup: systemd}
}

// clearTime bounds how long containerd may take to clear away what a dead shim has left, and a shim to let a container run.
const clearTime = 10 * time.Second

// start makes the task out of CRIU's images and lets it run. If ctx ends before, it does not, or is ended.
func (m *making) start(ctx context.Context, container containerd.Container) error {
	p, work := m.prepared, m.criu()
	// Cancelling a call does not end what it is about: the shim is told to.
	calling := context.WithoutCancel(ctx)
	var err error
	for deadline := time.Now().Add(clearTime); ; time.Sleep(pollTime) {
		if err = failure.Expect(work); err != nil {
			return err
		}
		m.task, err = container.NewTask(calling, taskIO(p.Spec, m.log), func(_ context.Context, _ *containerd.Client, info *containerd.TaskInfo) error {
			o := runtimeOptions(p.Spec)
			o.CriuImagePath, o.CriuWorkPath = p.Images, work
			info.Options = o
			return nil
		})
		// The container is new: the task is of one of this name whose shim has died, and containerd is clearing it away. It is not if the shim says it.
		if !errdefs.IsAlreadyExists(err) || failure.Find(work, new(failure.Error)) || ctx.Err() != nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("create the task: %w", remote(work, err))
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() { started <- m.task.Start(calling) }()
	select {
	case err = <-started:
	case <-ctx.Done():
		var killed error
		if !m.isRunning() {
			killing, cancel := context.WithTimeout(calling, undoTime)
			defer cancel()
			killed = IgnoreNotFound(m.task.Kill(killing, unix.SIGKILL))
		}
		err = cmp.Or(<-started, killed)
		if cause := context.Cause(ctx); err == nil || !errors.Is(cause, errGone) { // else the shim has ended the restore, and err says why
			return cause
		}
	}
	if err != nil {
		return fmt.Errorf("restore the processes: %w", remote(work, err))
	}
	return nil
}

// remote gives the error of a call of containerd: the one that the shim has left in CRIU's work directory, if it has, else containerd's.
func remote(criuWork string, err error) error {
	var told failure.Error
	if failure.Find(criuWork, &told) {
		return &told
	}
	return &daemon.Error{Err: err}
}

// taskIO says where the container's output goes: to the log, or where the shim keeps it. A terminal keeps its FIFOs, so that
// ctr task attach and nerdctl attach find it.
func taskIO(spec *specs.Spec, log *url.URL) cio.Creator {
	terminal := spec.Process != nil && spec.Process.Terminal
	switch {
	case log != nil && terminal:
		return cio.TerminalLogURI(log)
	case log != nil:
		return cio.LogURI(log)
	case terminal:
		return cio.NewCreator(cio.WithTerminal, cio.WithStreams(strings.NewReader(""), io.Discard, nil))
	}
	return cio.NullIO
}
