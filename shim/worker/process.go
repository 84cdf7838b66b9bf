package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/guard"
)

// program is the restore process's program, beside the shim's.
const program = "cryo"

// How long a process may take to undo what it did, and to answer whether a container may run. The shim itself undoes a checkpoint whose process was killed.
const (
	undoTime           = 15 * time.Second
	undoCheckpointTime = time.Minute
	answerTime         = 5 * time.Minute
)

// togetherTime is how long the process of a member of a group may take to answer whether the container may run: it waits until all members are ready.
const togetherTime = 10 * time.Minute

// Process is a restore process as the shim sees it. It ends by itself when all memory is in place and in the local store, and it ends when the shim does.
type Process struct {
	said     chan Message // the process's messages; closed when it has hung up
	channel  *channel.Channel
	command  *exec.Cmd
	patience time.Duration // how long it may take to undo what it did
	together bool          // it restores a member of a group
	pool     bool          // it restores a member of a pool
	ended    chan struct{} // closed when the process has ended
	closing  sync.Once
	work     string // its working directory; empty: not known

	sweeping sync.Mutex // held by the goroutine that removes the working directory: the shim must not end before
}

// The errors of processes that have ended without a word.
var (
	ErrDied           = failure.New(errdefs.ErrUnavailable, diedHint, "the restore process has died")
	ErrCheckpointDied = failure.New(errdefs.ErrUnavailable, diedHint, "the checkpoint process has died")
)

const diedHint = "try again; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?)"

// Start starts a restore process and waits until it has prepared all that r asks for; nil: the container's image is no snapshot's. If ctx ends, it is ended, and has
// undone what it did.
func Start(ctx context.Context, r Request) (*Process, *Prepared, error) {
	p, err := spawn(Command, r)
	if err != nil {
		return nil, nil, fmt.Errorf("start the restore process: %w", err)
	}
	p.pool = r.Order != nil && r.Order.Pool
	return p.prepare(ctx)
}

// spawn starts the cryo program that is beside the shim's, with one argument.
func spawn(argument string, r Request) (*Process, error) {
	path, err := guard.Beside("", program)
	if err != nil {
		return nil, err
	}
	command := exec.Command(path, argument)
	command.Dir = "/"
	for _, v := range r.environment() {
		if !strings.HasPrefix(v, "GOMAXPROCS=") { // the shim has two cores, the process all
			command.Env = append(command.Env, v)
		}
	}
	return begin(command, r)
}

// begin starts a process, which begins with r at once. The caller calls End, or Let for one that runs a container.
func begin(command *exec.Cmd, r Request) (*Process, error) {
	own, other, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	command.ExtraFiles = []*os.File{other}
	command.SysProcAttr = &unix.SysProcAttr{Setsid: true} // no signal that is meant for others ends it
	exited, err := gorunc.Monitor.Start(command)
	other.Close() // the process's death is heard when no other process has it
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	p := &Process{said: make(chan Message), channel: own, command: command, patience: undoTime, ended: make(chan struct{})}
	go func() {
		_, _ = gorunc.Monitor.Wait(command, exited)
		close(p.ended)
	}()
	go p.listen()
	r.Protocol = protocol
	_ = own.Send(Message{Request: &r}) // where it has died, nothing is said
	return p, nil
}

// CgroupOf returns the cgroup of a process: a [cgroup1.Cgroup] or a [*cgroup2.Manager].
func CgroupOf(pid int) (cgroup any, err error) {
	if cgroups.Mode() == cgroups.Unified {
		var path string
		if path, err = cgroup2.PidGroupPath(pid); err == nil {
			cgroup, err = cgroup2.Load(path)
		}
	} else {
		cgroup, err = cgroup1.Load(cgroup1.PidPath(pid))
	}
	if err != nil {
		return nil, fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	return cgroup, nil
}

// first waits for the process's first word. If ctx ends before, the process hears that no process waits, says that it was called off, or ends.
func (p *Process) first(ctx context.Context) (Message, error) {
	defer context.AfterFunc(ctx, p.callOff)()
	answer, err := p.hear()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer, err
}

// callOff hangs up: the shim says nothing more. The process then undoes what it did, and ends.
func (p *Process) callOff() { _ = p.channel.HangUp() }

// prepare waits for what the process has prepared.
func (p *Process) prepare(ctx context.Context) (*Process, *Prepared, error) {
	answer, err := p.first(ctx)
	if err == nil && answer.Ordinary {
		go p.End()
		return nil, nil, nil
	}
	if err == nil && answer.Prepared == nil {
		err = unexpected(answer)
	}
	if err != nil {
		p.End()
		return nil, nil, err
	}
	p.work = filepath.Dir(answer.Prepared.Work)
	p.together = answer.Prepared.Together != nil
	return p, answer.Prepared, nil
}

// listen passes on what the process says.
func (p *Process) listen() {
	defer close(p.said)
	for {
		var m Message
		fds, err := p.channel.Receive(&m)
		channel.Close(fds) // it sends none
		if err != nil {
			return
		}
		p.said <- m
	}
}

// ask asks the process, and gives its answer. Errors are the process's.
func (p *Process) ask(m Message) (Message, error) {
	if err := p.channel.Send(m); err != nil {
		return Message{}, errors.Join(ErrDied, err)
	}
	return p.hear()
}

// hear waits for an answer.
func (p *Process) hear() (Message, error) {
	answer, ok := <-p.said
	switch {
	case !ok:
		return answer, ErrDied
	case answer.Failed != nil:
		return answer, answer.Failed
	}
	return answer, nil
}

func unexpected(m Message) error {
	return fmt.Errorf("unexpected message from the restore process: %+v: %w", m, errdefs.ErrInternal)
}

// Files asks the restore process to review the part of CRIU's images that depends on the container's root file system. The root file system is mounted. Errors are those of [trust.Sandbox.Files].
func (p *Process) Files(f Files) error {
	late := time.AfterFunc(answerTime, p.hangUp)
	defer late.Stop()
	answer, err := p.ask(Message{Files: &f})
	if err == nil && !answer.Reviewed {
		err = unexpected(answer)
	}
	return err
}

// Commit asks the restore process whether the container may run: the client may have cancelled the restore. The process of a member of a group answers when all members are ready. A nil Process permits it.
func (p *Process) Commit() error {
	if p == nil {
		return nil
	}
	patience := answerTime
	if p.together {
		patience = togetherTime
	}
	late := time.AfterFunc(patience, p.hangUp)
	defer late.Stop()
	answer, err := p.ask(Message{Commit: true, Fenced: p.together, Stands: p.pool})
	if err == nil && !answer.Committed {
		err = unexpected(answer)
	}
	return err
}

// Because returns the reason why a restore has failed with err, where the process knows better, or is itself the reason. nil knows nothing.
func (p *Process) Because(err error) error {
	if p == nil {
		return err
	}
	late := time.AfterFunc(answerTime, p.hangUp)
	defer late.Stop()
	switch answer, failed := p.ask(Message{Failed: failure.Of(err)}); {
	case errors.Is(failed, ErrDied):
		return ErrDied
	case answer.Failed == nil || failed == nil, *answer.Failed == *failure.Of(err):
		return err
	default:
		return failed
	}
}

// Running tells the process that the container runs: from now on it pulls what no process waits for, and ends when all is here.
func (p *Process) Running(l gpu.Loaded) error { return p.channel.Send(Message{Running: &l}) }

// hangUp lets go of the process.
func (p *Process) hangUp() { p.closing.Do(func() { _ = p.channel.Close() }) }

// End ends the process, which undoes what it did but for the root file system, and waits until it has ended. nil is none.
func (p *Process) End() {
	if p == nil {
		return
	}
	p.hangUp()
	select {
	case <-p.ended:
	case <-time.After(p.patience):
		_ = p.command.Process.Kill() // it may have ended
		<-p.ended
	}
	p.sweep()
}

// sweepTime is how long a process may take from hanging up to its end.
const sweepTime = 2 * time.Second

// sweep removes what a process has left that was killed. One that has ended by itself has removed it.
func (p *Process) sweep() {
	p.sweeping.Lock()
	defer p.sweeping.Unlock()
	for deadline := time.Now().Add(sweepTime); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if p.work == "" || store.SweepWork(p.work) == nil {
			return
		}
	}
	// The next process does it.
}

// Let closes the channel when the process has ended.
func (p *Process) Let() {
	for range p.said { // there are none
	}
	<-p.ended
	p.hangUp()
	p.sweep()
}

// Ended is closed when the process has ended; of nil it never is.
func (p *Process) Ended() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.ended
}

// PID is the process's.
func (p *Process) PID() int { return p.command.Process.Pid }

// Fill has the process fill in memory of the container's processes. other is its end of a channel.
func (p *Process) Fill(other *os.File, rate int64) error {
	return p.channel.Send(Message{Fill: &Fill{Rate: rate}}, int(other.Fd()))
}

// Load has the process load memory of GPUs. other is its end of a channel, keeper that of the connection to the keeper.
func (p *Process) Load(other, keeperEnd *os.File) error {
	return p.channel.Send(Message{Load: true}, int(other.Fd()), int(keeperEnd.Fd()))
}
