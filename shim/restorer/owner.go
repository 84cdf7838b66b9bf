package restorer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/containerd/containerd/api/types"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/channel"
)

// Owner is a restore process as the command sees that has started it, and makes the container. If the command ends before the container is about to run, the
// process undoes what both have made. Afterwards, neither depends on the command.
type Owner struct {
	channel *channel.Channel
	answers chan Message
	ended   chan struct{} // closed when the process has ended
	ctx     context.Context
	work    string // the process's working directory; empty: not known
}

// Told are the messages that may come at any time.
type Told struct {
	Progress func(what string, done, total int64) // nil: nobody looks
	Log      func(line string)                    // nil: nobody reads it
}

// ContainerError is a failure that is about a container.
type ContainerError struct {
	Name   string
	RunsOn bool // the container
	Err    *failure.Error
}

func (e *ContainerError) Error() string { return e.Err.Error() }

// Unwrap gives the failure.
func (e *ContainerError) Unwrap() error { return e.Err }

// Ask starts a restore process, which begins with r at once. path is the cryo program's, and variables are added to its environment. The caller calls End. The
// context that it gives ends when the process can do no more, and its cause says why.
func Ask(ctx context.Context, path string, r Request, variables []string, told Told) (context.Context, *Owner, error) {
	command := exec.Command(path, Command)
	command.Env = append(os.Environ(), variables...)
	own, ended, err := start(command)
	if err != nil {
		return ctx, nil, fmt.Errorf("start the restore process: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	const most = 8 // messages that nobody has waited for yet
	o := &Owner{channel: own, answers: make(chan Message, most), ended: ended, ctx: ctx}
	go func() {
		defer close(o.answers)
		if err := o.listen(told); err != nil {
			cancel(err)
		}
	}()
	r.Protocol = protocol
	if err := own.Send(Message{Request: &r}); err != nil {
		o.End(0)
		return ctx, nil, err
	}
	return ctx, o, nil
}

// listen passes on what the process says until it says no more, and gives the reason.
func (o *Owner) listen(told Told) error {
	for {
		var m Message
		fds, err := o.channel.Receive(&m)
		channel.Close(fds) // it sends none
		switch {
		case err != nil:
			return ErrDied
		case m.Failed != nil && m.Container != "":
			return &ContainerError{Name: m.Container, RunsOn: m.RunsOn, Err: m.Failed}
		case m.Failed != nil:
			return m.Failed
		case m.Progress != nil:
			if told.Progress != nil {
				told.Progress(m.Progress.What, m.Progress.Done, m.Progress.Total)
			}
		case m.Log != "":
			if told.Log != nil {
				told.Log(m.Log)
			}
		default:
			o.answers <- m
			if m.Complete != nil {
				return nil
			}
		}
	}
}

// next gives the next message, or why there is none.
func (o *Owner) next() (Message, error) {
	select {
	case m, ok := <-o.answers:
		if ok {
			return m, nil
		}
	case <-o.ctx.Done():
		select {
		case m, ok := <-o.answers: // it was said before
			if ok {
				return m, nil
			}
		default:
		}
	}
	return Message{}, context.Cause(o.ctx)
}

// expect gives what is there of the next message.
func expect[T any](o *Owner, what func(Message) (T, bool)) (v T, err error) {
	m, err := o.next()
	if err != nil {
		return v, err
	}
	v, ok := what(m)
	if !ok {
		return v, unexpected(m)
	}
	return v, nil
}

// Begun waits for the process's working directory, by which all is marked that the command makes.
func (o *Owner) Begun() (work string, err error) {
	o.work, err = expect(o, func(m Message) (string, bool) { return m.Begun, m.Begun != "" })
	return o.work, err
}

// Considered waits for the snapshot. The process goes on after Admit.
func (o *Owner) Considered() (*Considered, error) {
	return expect(o, func(m Message) (*Considered, bool) { return m.Considered, m.Considered != nil })
}

// Admit says that the container can be made.
func (o *Owner) Admit() error { return o.channel.Send(Message{Admitted: true}) }

// Planned waits for what the container is to be.
func (o *Owner) Planned() (*Plan, error) {
	return expect(o, func(m Message) (*Plan, bool) { return m.Planned, m.Planned != nil })
}

// Apply has the process write into the container's new root file system what the snapshot's had changed.
func (o *Owner) Apply(rootfs []*types.Mount) error {
	if err := o.channel.Send(Message{Apply: rootfs}); err != nil {
		return err
	}
	_, err := expect(o, func(m Message) (bool, bool) { return m.Applied, m.Applied })
	return err
}

// Runs waits until the process knows that the container runs.
func (o *Owner) Runs() (*Runs, error) {
	return expect(o, func(m Message) (*Runs, bool) { return m.Runs, m.Runs != nil })
}

// Complete waits until all memory is in the local store.
func (o *Owner) Complete() (*Counts, error) {
	return expect(o, func(m Message) (*Counts, bool) { return m.Complete, m.Complete != nil })
}

// End lets go of the process: where the container does not run it undoes what was made, and is waited for, for as long as patience. What one leaves that was killed is
// removed.
func (o *Owner) End(patience time.Duration) {
	_ = o.channel.Close()
	select {
	case <-o.ended:
		if o.work != "" {
			_ = store.SweepWork(o.work) // what cannot be removed now, the next process sweeps
		}
	case <-time.After(patience):
	}
}
