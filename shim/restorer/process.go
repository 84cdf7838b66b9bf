package restorer

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
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu"
)

// program is the restore process's program, beside the shim's.
const program = "cryo"

// How long a process may take to undo what it did, and to answer whether a container may run. The shim itself undoes a checkpoint whose process was killed.
const (
	undoTime           = 15 * time.Second
	undoCheckpointTime = time.Minute
	answerTime         = 5 * time.Minute
)

// Process is a restore process as the shim sees it, or the command that has started it. It ends by itself when all memory is in place and in the local store, and it
// ends when the shim does.
type Process struct {
	// Said are the process's messages. It is closed when the process has hung up.
	Said chan Message

	channel  *channel.Channel
	pid      int
	command  *exec.Cmd     // nil: somebody else has started the process
	patience time.Duration // how long it may take to undo what it did
	ended    chan struct{} // closed when the process has ended
	moved    chan struct{} // closed when it is in the shim's cgroup; nil: it was from the beginning
	closing  sync.Once
	work     string // its working directory; empty: not known

	sweeping sync.Mutex // held by who removes the working directory: the shim must not end before
}

// The errors of processes that have ended without a word.
var (
	ErrDied           = failure.New(errdefs.ErrUnavailable, diedHint, "the restore process has died")
	errCheckpointDied = failure.New(errdefs.ErrUnavailable, diedHint, "the checkpoint process has died")
)

const diedHint = "try again; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?)"

// Start starts a restore process and waits until it has prepared all that r asks for; nil: the container's image is no snapshot's. If ctx ends, it is ended, and has
// undone what it did.
func Start(ctx context.Context, r Request) (*Process, *Prepared, error) {
	p, err := spawn(Command, r)
	if err != nil {
		return nil, nil, fmt.Errorf("start the restore process: %w", err)
	}
	return p.prepare(ctx)
}

// Take has the checkpoint process take a snapshot and send it, and waits for that. If ctx ends before, it is undone.
func Take(ctx context.Context, r Request) (_ *Taken, warnings []string, err error) {
	p, err := spawn(CheckpointCommand, r)
	if err != nil {
		return nil, nil, fmt.Errorf("start the checkpoint process: %w", err)
	}
	p.patience = undoCheckpointTime
	defer p.End()
	answer, err := p.first(ctx)
	switch {
	case errors.Is(err, ErrDied):
		err = errCheckpointDied
	case err == nil && answer.Taken == nil:
		err = unexpected(answer)
	}
	return answer.Taken, answer.Warnings, err
}

// spawn starts the cryo program that is beside the shim's, with one argument.
func spawn(argument string, r Request) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the shim's program: %w", err)
	}
	path := filepath.Join(filepath.Dir(strings.TrimSuffix(self, " (deleted)")), program)
	if path, err = exec.LookPath(path); err != nil {
		return nil, failure.New(errdefs.ErrFailedPrecondition, "make install puts both in one directory", "find the program %s beside the shim: %v", program, err)
	}
	command := exec.Command(path, argument)
	command.Dir = "/"
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOMAXPROCS=") { // the shim has two cores, the process all
			command.Env = append(command.Env, v)
		}
	}
	return Begin(command, r)
}

// Begin starts a process, which begins with r at once. The caller calls End, or for one that runs a container Let or HangUp.
func Begin(command *exec.Cmd, r Request) (*Process, error) {
	own, other, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	command.ExtraFiles = []*os.File{other}
	command.SysProcAttr = &unix.SysProcAttr{Setsid: true} // no signal that is meant for others ends it
	exited, err := gorunc.Monitor.Start(command)
	other.Close() // the process's death is heard when nobody else has it
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	p := &Process{Said: make(chan Message), channel: own, pid: command.Process.Pid, command: command, patience: undoTime, ended: make(chan struct{})}
	go func() {
		_, _ = gorunc.Monitor.Wait(command, exited)
		close(p.ended)
	}()
	go p.listen()
	r.Protocol = protocol
	_ = own.Send(Message{Request: &r}) // where it has died, nothing is said
	return p, nil
}

// Join reaches the restore process that a command has started, if CRIU's work directory criu is one of its; nil: it is not. From then on the process lives
// where the shim does, so that what ends the command and all that it has started does not end it.
func Join(ctx context.Context, criu string, r Request) (*Process, *Prepared, error) {
	dir := filepath.Dir(criu)
	if _, err := os.Lstat(filepath.Join(dir, SocketName)); err != nil {
		return nil, nil, nil //nolint:nilerr // another client's
	}
	c, pid, err := channel.Dial(dir, SocketName)
	if err != nil {
		return nil, nil, fmt.Errorf("reach the restore process: %w: %w", err, errdefs.ErrUnavailable)
	}
	p := &Process{Said: make(chan Message), channel: c, pid: pid, ended: make(chan struct{}), moved: make(chan struct{})}
	go p.listen()
	go func() {
		defer close(p.moved)
		if err := shareCgroup(pid); err != nil {
			log.G(ctx).WithError(err).Warn("the restore process remains in the cgroup of the command, and ends with that")
		}
	}()
	r.Protocol = protocol
	_ = c.Send(Message{Request: &r}) // where it has died, nothing is said
	return p.prepare(ctx)
}

// shareCgroup puts a process into this one's cgroup.
func shareCgroup(pid int) error {
	cgroup, err := CgroupOf(os.Getpid())
	switch c := cgroup.(type) {
	case cgroup1.Cgroup:
		return c.AddProc(uint64(pid))
	case *cgroup2.Manager:
		return c.AddProc(uint64(pid))
	}
	return err
}

// CgroupOf gives the cgroup of a process: a [cgroup1.Cgroup] or a [*cgroup2.Manager].
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

// first waits for the process's first word. If ctx ends before, the process hears that nobody waits, says that it was called off, or ends.
func (p *Process) first(ctx context.Context) (Message, error) {
	defer context.AfterFunc(ctx, p.CallOff)()
	answer, err := p.hear()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer, err
}

// CallOff tells the process that nobody wants any more what it is to do.
func (p *Process) CallOff() { _ = p.channel.HangUp() }

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
	return p, answer.Prepared, nil
}

// listen passes on what the process says.
func (p *Process) listen() {
	defer close(p.Said)
	if p.command == nil {
		defer close(p.ended)
	}
	for {
		var m Message
		fds, err := p.channel.Receive(&m)
		channel.Close(fds) // it sends none
		if err != nil {
			return
		}
		p.Said <- m
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
	answer, ok := <-p.Said
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

// Commit asks whether the container may run, which whoever asked for it may not want any more. nil has nobody to ask.
func (p *Process) Commit() error {
	if p == nil {
		return nil
	}
	if p.moved != nil {
		<-p.moved
	}
	late := time.AfterFunc(answerTime, p.HangUp)
	defer late.Stop()
	answer, err := p.ask(Message{Commit: true})
	if err == nil && !answer.Committed {
		err = unexpected(answer)
	}
	return err
}

// Because gives the reason why a restore has failed with err, where the process knows better. nil knows nothing.
func (p *Process) Because(err error) error {
	if p == nil {
		return err
	}
	late := time.AfterFunc(answerTime, p.HangUp)
	defer late.Stop()
	switch answer, failed := p.ask(Message{Failed: failure.Of(err)}); {
	case answer.Failed == nil || failed == nil, *answer.Failed == *failure.Of(err):
		return err
	default:
		return failed
	}
}

// Running tells the process that the container runs: from now on it pulls what nobody waits for, and ends when all is here.
func (p *Process) Running(l gpu.Loaded) error { return p.channel.Send(Message{Running: &l}) }

// HangUp lets go of the process.
func (p *Process) HangUp() { p.closing.Do(func() { _ = p.channel.Close() }) }

// End ends the process, which undoes what it did but for the root file system, and waits until it has ended; for one that somebody else has started it does not wait.
// nil is none.
func (p *Process) End() {
	if p == nil {
		return
	}
	p.HangUp()
	if p.command == nil {
		return
	}
	select {
	case <-p.ended:
	case <-time.After(p.patience):
		_ = p.command.Process.Kill() // it may have ended
		<-p.ended
	}
	p.sweep()
}

// Await waits for the process's end, though not for longer than patience.
func (p *Process) Await(patience time.Duration) {
	select {
	case <-p.ended:
	case <-time.After(patience):
	}
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
	for range p.Said { // there are none
	}
	<-p.ended
	p.HangUp()
	p.sweep()
}

// PID is the process's.
func (p *Process) PID() int { return p.pid }

// Fill has the process fill in memory of the container's processes; see package fill. other is its end of a channel.
func (p *Process) Fill(other *os.File, rate int64) error {
	return p.channel.Send(Message{Fill: &Fill{Rate: rate}}, int(other.Fd()))
}

// Load has the process load memory of GPUs; see package load. other is its end of a channel, keeper that of the connection to the keeper.
func (p *Process) Load(other, keeper *os.File) error {
	return p.channel.Send(Message{Load: true}, int(other.Fd()), int(keeper.Fd()))
}
