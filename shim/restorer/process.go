package restorer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// program is the restore process's program, beside the shim's.
const program = "cryo"

// endTime is how long the process may take to undo what it did.
const endTime = 15 * time.Second

// Process is a restore process. It ends by itself when all memory is in the local store, and it ends when the shim does.
type Process struct {
	channel *channel.Channel
	command *exec.Cmd
	ended   chan struct{} // closed when the process has ended
	closing sync.Once
	work    string // its working directory; empty: not known
}

// MissingError says that the program is not there. Its kind is FailedPrecondition.
type MissingError struct{ Err error }

func (e *MissingError) Error() string {
	return fmt.Sprintf("find the program %s beside the shim: %v", program, e.Err)
}

// Hint says what to do.
func (e *MissingError) Hint() string { return "make install puts both in one directory" }

// Unwrap gives the kind.
func (e *MissingError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Start starts a restore process and waits until it has prepared all that r asks for. If ctx ends, it is ended, and has undone what it did.
func Start(ctx context.Context, r Request) (_ *Process, _ *Prepared, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find the shim's program: %w", err)
	}
	path := filepath.Join(filepath.Dir(strings.TrimSuffix(self, " (deleted)")), program)
	if path, err = exec.LookPath(path); err != nil {
		return nil, nil, &MissingError{Err: err}
	}
	own, other, err := channel.Pair()
	if err != nil {
		return nil, nil, err
	}
	p := &Process{channel: own, ended: make(chan struct{})}
	p.command = exec.Command(path, Command)
	p.command.ExtraFiles = []*os.File{other}
	p.command.Dir = "/"
	p.command.SysProcAttr = &unix.SysProcAttr{Setsid: true} // no signal that is meant for others ends it
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOMAXPROCS=") { // the shim has two cores, the process all
			p.command.Env = append(p.command.Env, v)
		}
	}
	exited, err := gorunc.Monitor.Start(p.command)
	other.Close() // the process's death is heard when nobody else has it
	if err != nil {
		own.Close()
		return nil, nil, fmt.Errorf("start the restore process: %w", err)
	}
	go func() {
		_, _ = gorunc.Monitor.Wait(p.command, exited)
		close(p.ended)
	}()
	defer func() {
		if err != nil {
			p.End()
		}
	}()
	r.Protocol = protocol
	if err := own.Send(Message{Request: &r}); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = own.HangUp() }) // the process then says that it was called off, or ends
	defer stop()
	var m Message
	_, err = own.Receive(&m)
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return nil, nil, fmt.Errorf("the restore process has died: %w", errdefs.ErrUnavailable)
	case err != nil:
		return nil, nil, err
	case m.Failed != nil:
		return nil, nil, m.Failed
	case m.Prepared == nil:
		return nil, nil, fmt.Errorf("unexpected message from the restore process: %+v: %w", m, errdefs.ErrInternal)
	}
	p.work = filepath.Dir(m.Prepared.Work)
	return p, m.Prepared, nil
}

// Running tells the process that the container runs: from now on it pulls what nobody waits for, and ends when all is here.
func (p *Process) Running() error { return p.channel.Send(Message{Running: true}) }

// End ends the process, which undoes what it did but for the root file system, and waits until it has ended.
func (p *Process) End() {
	p.closing.Do(func() { _ = p.channel.Close() })
	select {
	case <-p.ended:
	case <-time.After(endTime):
		_ = p.command.Process.Kill() // it may have ended
		<-p.ended
	}
	p.sweep()
}

// sweep removes what a process has left that was killed. One that has ended by itself has removed it.
func (p *Process) sweep() {
	if p.work == "" {
		return
	}
	if _, err := os.Lstat(p.work); err != nil {
		return
	}
	_ = mount.UnmountRecursive(p.work, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // there may be none
	_ = os.RemoveAll(p.work)                                                 // what cannot be removed now, the next process sweeps
	_ = arrival.Forget(p.work)
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Let closes the channel when the process has ended, so that nothing is left of it.
func (p *Process) Let() {
	<-p.ended
	p.closing.Do(func() { _ = p.channel.Close() })
	p.sweep()
}

// Serve answers the shim on the channel with this descriptor. prepare does what a request asks for, and gives what is to be done when the container runs, and
// what lets go in any case. ctx ends when the shim does, or does not want it any more.
func Serve(descriptor int, prepare func(ctx context.Context, r Request) (_ *Prepared, running func() error, done func(), _ error)) error {
	c, err := channel.Open(descriptor)
	if err != nil {
		return err
	}
	defer c.Close()
	var m Message
	if _, err := c.Receive(&m); err != nil {
		return err
	}
	if m.Request == nil || m.Request.Protocol != protocol {
		err := fmt.Errorf("the shim's program and %s are of different versions: %w", program, errdefs.ErrFailedPrecondition)
		return errors.Join(err, c.Send(Message{Failed: failure.New(errdefs.ErrFailedPrecondition, "install both of one version, and start the container again", "%v", err)}))
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	runs := make(chan struct{})
	run := sync.OnceFunc(func() { close(runs) })
	go func() {
		for {
			var m Message
			if _, err := c.Receive(&m); err != nil {
				cancel(errGone)
				return
			}
			if m.Running {
				run()
			}
		}
	}()
	prepared, running, done, err := prepare(ctx, *m.Request)
	if err != nil {
		return errors.Join(err, c.Send(Message{Failed: failure.Of(err)}))
	}
	defer done()
	if err := c.Send(Message{Prepared: prepared}); err != nil {
		return err
	}
	select {
	case <-runs:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return running()
}

// errGone is why a restore ends whose shim has ended, or does not want it any more.
var errGone = errors.New("the shim has called the restore off")
