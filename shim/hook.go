package shim

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/shim/worker"
)

// hookTime is how long a hook may take, unless the container's annotation says otherwise, and maxHookTime the longest that one may ask for: a snapshot may have it.
const (
	hookTime    = 30 * time.Second
	maxHookTime = 10 * time.Minute
)

// hooks are the commands of a container, by their names; those that it does not have are not there.
type hooks struct {
	commands map[string][]string
	timeout  time.Duration
	process  *specs.Process // of the container
}

// hooksOf reads the hooks of a container. The annotation NAME.CONTAINER is that of one container of a pod, and counts before NAME, which counts before the label NAME. A command is an
// array of JSON, which begins with [", or text for /bin/sh -c, which may begin with the command [.
func hooksOf(spec *specs.Spec, labels map[string]string) (h hooks, err error) {
	value := func(name string) string {
		return cmp.Or(spec.Annotations[name+"."+spec.Annotations[nameAnnotation]], spec.Annotations[name], labels[name])
	}
	h = hooks{commands: map[string][]string{}, timeout: hookTime, process: spec.Process}
	for _, name := range []string{trust.BeforeCheckpoint, trust.AfterCheckpoint, trust.AfterRestore} {
		text := value(name)
		if text == "" {
			continue
		}
		command := []string{"/bin/sh", "-c", text}
		if strings.HasPrefix(text, `["`) {
			command = nil
			if err := json.Unmarshal([]byte(text), &command); err != nil || len(command) == 0 {
				return h, failure.New(errdefs.ErrInvalidArgument, "write [\"COMMAND\", \"ARGUMENT\"], or text for a shell that does not begin with [\"", "the hook %s=%q is no array of a command and its arguments", name, text)
			}
		}
		h.commands[name] = command
	}
	if text := value(trust.HookTimeout); text != "" {
		if h.timeout, err = time.ParseDuration(text); err != nil || h.timeout <= 0 || h.timeout > maxHookTime {
			return h, failure.New(errdefs.ErrInvalidArgument, "", "%s=%q is no duration such as 10s, of at most %s", trust.HookTimeout, text, maxHookTime)
		}
	}
	if len(h.commands) > 0 && h.process == nil {
		return h, fmt.Errorf("the container has hooks and no process: %w", errdefs.ErrInvalidArgument)
	}
	return h, nil
}

// runHook runs a command in the container as its user, if it has one of this name, and waits for it. What it prints is in the error.
func (s *service) runHook(ctx context.Context, c *container, h hooks, name string) error {
	command := h.commands[name]
	if command == nil {
		return nil
	}
	late := failure.New(context.DeadlineExceeded, "see what it waits for, or give it more time by the annotation "+trust.HookTimeout, "the hook %s has not ended within %s", name, h.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, h.timeout, late)
	defer cancel()
	process := *h.process
	process.Args, process.Terminal, process.ConsoleSize, process.CommandLine = command, false, nil, ""
	spec, err := typeurl.MarshalAnyToProto(&process)
	if err != nil {
		return fmt.Errorf("run the hook %s: %w", name, err)
	}
	out, err := openHookOutput(c.bundle.dir)
	if err != nil {
		return fmt.Errorf("run the hook %s: %w", name, err)
	}
	id, exec := c.request.ID, "cryo-hook-"+rand.Text()
	status, err := s.exec(ctx, &taskAPI.ExecProcessRequest{ID: id, ExecID: exec, Spec: spec, Stdout: out.path, Stderr: out.path})
	printed := out.close()
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case err != nil:
		return failure.New(errdefs.ErrFailedPrecondition, "see whether the container has the command", "run the hook %s: %v", name, native(err))
	case status != 0:
		return failure.New(errdefs.ErrAborted, "see why it fails: run it with ctr tasks exec", "the hook %s has exited with %d%s", name, status, printed)
	}
	return nil
}

// exec runs a process in the container, beside calls of containerd, and returns how it has exited. If ctx ends, it is killed with its descendants.
func (s *service) exec(ctx context.Context, r *taskAPI.ExecProcessRequest) (status uint32, err error) {
	again := context.WithoutCancel(ctx)
	if _, err := s.TTRPCTaskService.Exec(ctx, r); err != nil {
		return 0, err
	}
	defer func() {
		const drain = time.Second // what it has left behind may hold its output
		deleting, cancel := context.WithTimeout(again, drain)
		defer cancel()
		_, _ = s.TTRPCTaskService.Delete(deleting, &taskAPI.DeleteRequest{ID: r.ID, ExecID: r.ExecID})
	}()
	started, err := s.TTRPCTaskService.Start(again, &taskAPI.StartRequest{ID: r.ID, ExecID: r.ExecID})
	if err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, func() {
		for _, pid := range criu.ProcessTree(int(started.Pid)) {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
	})()
	exited, err := s.TTRPCTaskService.Wait(again, &taskAPI.WaitRequest{ID: r.ID, ExecID: r.ExecID})
	if err != nil {
		return 0, err
	}
	return exited.ExitStatus, nil
}

// maxHookOutput bounds how much of what a hook prints is kept, bytes.
const maxHookOutput = 1 << 10

// hookOutput takes what a hook prints, and keeps the beginning.
type hookOutput struct {
	path string
	fifo *os.File
	over sync.WaitGroup
	text []byte // when over is done
}

func openHookOutput(bundle string) (*hookOutput, error) {
	o := &hookOutput{path: filepath.Join(bundle, "cryo-hook")}
	_ = os.Remove(o.path) // of a shim that has died
	if err := unix.Mkfifo(o.path, 0o600); err != nil {
		return nil, fmt.Errorf("make a pipe for its output: %w", err)
	}
	var err error
	if o.fifo, err = os.OpenFile(o.path, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
		return nil, errors.Join(err, os.Remove(o.path))
	}
	o.over.Go(func() {
		buffer := make([]byte, maxHookOutput)
		for {
			n, err := o.fifo.Read(buffer)
			o.text = append(o.text, buffer[:min(n, maxHookOutput-len(o.text))]...)
			if err != nil {
				return
			}
		}
	})
	return o, nil
}

// close ends it, and returns what was printed as the end of a sentence. It is quoted: the container must not write a line of the error.
func (o *hookOutput) close() string {
	_ = o.fifo.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // what is in the pipe is read before
	o.over.Wait()
	_ = o.fifo.Close()
	_ = os.Remove(o.path)
	text := strings.TrimSpace(string(o.text))
	if text == "" {
		return ""
	}
	return fmt.Sprintf(", and has printed %q", text)
}

// runWithHooks runs the checkpoint of a container between its hooks, and tells its program that it goes on.
func (s *service) runWithHooks(ctx context.Context, in *admission, c *container, request checkpoint.Request, holder *worker.Holder) (result checkpoint.Result, err error) {
	spec, err := c.bundle.spec()
	if err != nil {
		return result, err
	}
	h, err := hooksOf(spec, holder.Asked().Hooks)
	if err != nil {
		return result, checkpoint.Failed(request.ID, err)
	}
	if h.commands[trust.BeforeCheckpoint] != nil && request.Frozen {
		return result, checkpoint.Failed(request.ID, failure.New(errdefs.ErrFailedPrecondition, "take its snapshot with cryo checkpoint, or resume it before",
			"its client has paused the container, in which the hook %s is to be run", trust.BeforeCheckpoint))
	}
	if err = s.runHook(ctx, c, h, trust.BeforeCheckpoint); err != nil {
		err = checkpoint.Failed(request.ID, err)
	} else {
		result, err = s.run(ctx, in, c, request, holder)
	}
	if result.Killed || errors.Is(err, failure.ErrLost) || !request.Alive() {
		return result, err
	}
	c.tellResumed(ctx, request.First)
	if !request.Frozen && !request.Dump.Exit {
		warn(ctx, "after a checkpoint", s.runHook(context.WithoutCancel(ctx), c, h, trust.AfterCheckpoint))
	}
	return result, err
}

// runAfterRestore runs the hook of a container that was restored. It is broken off when gone is closed, with the command that has asked for the restore. If the hook fails, the container is ended.
func (s *service) runAfterRestore(ctx context.Context, c *container, gone <-chan struct{}) error {
	var h hooks
	spec, err := c.bundle.spec()
	if err == nil {
		h, err = hooksOf(spec, c.prepared.Hooks)
	}
	if err == nil && h.commands[trust.AfterRestore] != nil {
		hooking, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() {
			select {
			case <-gone:
				cancel(worker.ErrDied)
			case <-hooking.Done():
			}
		}()
		err = s.runHook(hooking, c, h, trust.AfterRestore)
	}
	if err != nil {
		return errors.Join(notRestored(c.request.ID, err), s.endRestored(ctx, c))
	}
	return nil
}
