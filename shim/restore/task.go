package restore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

// runtimeOptions tell the shim how cgroups are managed, which it would else not know of a container that is restored.
func runtimeOptions(spec *specs.Spec) *options.Options {
	systemd := spec.Linux != nil && strings.Count(spec.Linux.CgroupsPath, ":") == 2
	return &options.Options{SystemdCgroup: systemd}
}

// clearTime bounds how long containerd may take to clear away what a dead shim has left, and a shim to let a container run.
const clearTime = 10 * time.Second

// start makes the task, of which the options have the request, and lets it run. If ctx ends before, it does not, or is ended.
func (m *making) start(ctx context.Context, request worker.Request) error {
	// Cancelling a call does not end what it is about: the restore process hears that it is called off.
	calling := context.WithoutCancel(ctx)
	defer context.AfterFunc(ctx, m.listener.CallOff)()
	if err := m.createTask(ctx, calling, request); err != nil {
		return fmt.Errorf("create the task: %w", m.listener.Because(ctx, theirs(err)))
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() { started <- m.task.Start(calling) }()
	var err error
	select {
	case err = <-started:
	case <-ctx.Done():
		killing, cancel := context.WithTimeout(calling, undoTime)
		defer cancel()
		if killed := IgnoreNotFound(m.task.Kill(killing, unix.SIGKILL)); killed != nil {
			m.Warn("%v", killed)
		}
		<-started
		return context.Cause(ctx)
	}
	if err != nil {
		err = theirs(err)
	}
	if daemon.Gone(err) && m.Choices.Trial == nil && m.runsSoon(ctx) { // the shim has gone on without containerd
		if m.task, err = m.container.Task(calling, nil); err != nil {
			return m.runsOn("see that containerd runs; it finds the container then", failure.New(errdefs.ErrUnavailable, "", "%s runs, and containerd cannot be reached: %w", m.plan.Name, err))
		}
	}
	if err != nil {
		return fmt.Errorf("restore the processes: %w", m.listener.Because(ctx, err))
	}
	return nil
}

// theirs is an error of a call of containerd's that was not cancelled here: containerd cancels calls when it ends.
func theirs(err error) *failure.Error {
	if errdefs.IsCanceled(err) || errors.Is(err, context.Canceled) {
		err = fmt.Errorf("containerd has ended: %w", errdefs.ErrUnavailable)
	}
	return failure.Passed(err)
}

// createTask makes the task.
func (m *making) createTask(ctx, calling context.Context, request worker.Request) (err error) {
	o := runtimeOptions(m.plan.Spec)
	if err := request.Put(o); err != nil {
		return err
	}
	for deadline := time.Now().Add(clearTime); ; time.Sleep(pollTime) {
		m.task, err = m.container.NewTask(calling, taskIO(m.plan.Spec, m.log), func(_ context.Context, _ *containerd.Client, info *containerd.TaskInfo) error {
			info.Options = o
			return nil
		})
		// The container is new: the task is of one of this name whose shim has died, and containerd is clearing it away. It is not if the shim says it, which has a hint.
		if !errdefs.IsAlreadyExists(err) || theirs(err).Hint() != "" || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// runsSoon reports whether the container runs, where containerd cannot be asked.
func (m *making) runsSoon(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	_, err := m.listener.Await(ctx, func(*Result) bool { return true })
	return err == nil
}

// taskIO returns where the container's output goes: to the log, to the FIFOs of a terminal, or where the shim keeps it.
func taskIO(spec *specs.Spec, log *url.URL) cio.Creator {
	terminal := spec.Process != nil && spec.Process.Terminal
	switch {
	case log != nil && terminal:
		return cio.TerminalLogURI(log)
	case log != nil:
		return cio.LogURI(log)
	case terminal:
		return terminalIO(defaults.DefaultFIFODir)
	}
	return cio.NullIO
}

// terminalIO makes the FIFOs of a terminal in a new directory in dir, where ctr task attach and nerdctl attach find them. This process opens neither: with
// --wait it lives until all memory is pulled, and what it read would be missing at the terminal of a client that attaches meanwhile. The shim holds both open while the service opens them.
func terminalIO(dir string) cio.Creator {
	return func(id string) (cio.IO, error) {
		fifos, err := cio.NewFIFOSetInDir(dir, id, true)
		if err != nil {
			return nil, fmt.Errorf("make a directory for a terminal's FIFOs: %w", err)
		}
		fifos.Stderr = ""
		for _, path := range []string{fifos.Stdin, fifos.Stdout} {
			if err := unix.Mkfifo(path, 0o700); err != nil {
				return nil, errors.Join(fmt.Errorf("make FIFO %s: %w", path, err), fifos.Close())
			}
		}
		return cio.Load(fifos)
	}
}
