package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/job"
	"github.com/cryo-project/cryo/shim/restorer"
)

// Command is cryo restore as its user sees it: it has a restore process make a container, and shows how far that is.
type Command struct {
	// Program is the path of cryo, which is started as the restore process, and Variables are added to its environment.
	Program   string
	Variables []string
	Request   restorer.Request
	// Client undoes what the process has done in containerd, where it has died.
	Client *containerd.Client
	// Debug is told what the process logs for who debugs, a line at a time; nil: it logs nothing.
	Debug func(line string)

	job.Hooks
}

// patience is how long a restore process may take to end that has failed.
const patience = 5 * time.Second

// Run makes a running container of a snapshot. ctx carries containerd's namespace. After an error nothing is left of the container, with two exceptions. A [*job.Error] whose Running is true says that it runs.
// With [restorer.Choices.Wait], a container that ran, and was ended since its memory did not come, is not removed.
func (c Command) Run(ctx context.Context) (*Result, error) {
	c.Hooks = c.OrNobody()
	c.WaitsFor("pull", func() string { return "the registry" })
	c.Request.Choices.Progress, c.Request.Choices.Debug = c.Progress != nil, c.Debug != nil
	program := exec.Command(c.Program, restorer.Command)
	program.Env = append(os.Environ(), c.Variables...)
	process, err := restorer.Begin(program, c.Request)
	if err != nil {
		return nil, fmt.Errorf("start the restore process: %w", err)
	}
	defer process.HangUp()
	var (
		work, name string  // the process's working directory, and the container's name
		result     *Result // the container runs
		done       = ctx.Done()
	)
	for {
		select {
		case <-done:
			if result != nil {
				return nil, waited(ctx, name)
			}
			process.CallOff() // it undoes what it has done, and says so
			done = nil
		case m, ok := <-process.Said:
			switch {
			case !ok:
				process.Await(patience)
				return nil, c.died(ctx, work, name, result != nil)
			case m.Failed != nil:
				process.Await(patience)
				return nil, failed(ctx, m)
			case m.Progress != nil:
				c.Progress(m.Progress.What, m.Progress.Done, m.Progress.Total)
			case m.Log != "":
				c.Debug(m.Log)
			case m.Warning != "":
				c.Warn("%s", m.Warning)
			case m.Said != "":
				c.Say("%s", m.Said)
			case m.Begun != "":
				work = m.Begun
			case m.Container != "":
				name = m.Container
			case m.Result != nil:
				if err := json.Unmarshal(m.Result, &result); err != nil {
					return nil, fmt.Errorf("read what the restore process says: %w", err)
				}
				if result.Complete || !c.Request.Choices.Wait {
					return result, nil
				}
				if ctx.Err() != nil {
					return nil, waited(ctx, name)
				}
			}
		}
	}
}

// waited is the error of a wait for all memory that the user has interrupted: the container runs on.
func waited(ctx context.Context, name string) error {
	return &job.Error{Container: name, Running: true, Restored: true, Advice: name + " runs on, and its memory still comes",
		Err: fmt.Errorf("wait for the memory of %s: %w", name, context.Cause(ctx))}
}

// failed is the process's error, or that the user has interrupted it.
func failed(ctx context.Context, m restorer.Message) error {
	switch {
	case errors.Is(m.Failed, context.Canceled) && ctx.Err() != nil:
		return interrupted(ctx, m.Container)
	case m.Container == "":
		return m.Failed
	}
	return &job.Error{Container: m.Container, Running: m.RunsOn, Restored: m.RunsOn, Err: m.Failed}
}

// interrupted is the error of a restore that the user has interrupted, of a container if its name is known.
func interrupted(ctx context.Context, name string) error {
	if name == "" {
		return context.Cause(ctx)
	}
	return job.Failed(ctx, "restore", name, "", context.Cause(ctx))
}

// died undoes what a process has left that has died, unless the container ran: then its shim ends it, which lacks memory.
func (c Command) died(ctx context.Context, work, name string, ran bool) (err error) {
	err = restorer.ErrDied
	if ctx.Err() != nil && !ran {
		err = context.Cause(ctx)
	}
	if name != "" {
		err = job.Failed(ctx, "restore", name, "", err)
	}
	if work == "" || ran {
		return err
	}
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	left := eachOwn(undoing, c.Client, work, undo)
	_ = store.SweepWork(work) // what cannot be removed now, the next process sweeps
	return errors.Join(err, left)
}
