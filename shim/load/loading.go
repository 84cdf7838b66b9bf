package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/shim/order"
)

// Command is the argument that makes the shim's program the daemon.
const Command = "load"

// The daemon's descriptors.
const (
	channelDescriptor = 3
	peerDescriptor    = 4
)

// report is what the daemon tells; one of its members is there.
type report struct {
	Ready  bool           `json:"ready,omitempty"` // all that is needed is open
	Sent   bool           `json:"sent,omitempty"`  // all is with the keeper; the last
	Failed *failure.Error `json:"failed,omitempty"`
}

// Loading is device memory that is being loaded.
type Loading struct {
	process *exec.Cmd
	channel *channel.Channel
	peer    *os.File
	ended   chan struct{} // closed when the daemon has ended and err is there
	err     error         // valid when ended is closed
}

// readyTime is how long the daemon may take to open a snapshot.
const readyTime = 2 * time.Minute

// Start starts the daemon and waits until it has opened the snapshot. Errors are the daemon's. The caller closes it.
func Start(ctx context.Context, o order.Order) (_ *Loading, err error) {
	own, other, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a socket pair: %w", err), own.Close(), other.Close())
	}
	l := &Loading{channel: own, peer: os.NewFile(uintptr(pair[0]), "keeper"), ended: make(chan struct{})}
	peer := os.NewFile(uintptr(pair[1]), "loader")
	// By this process, not by name: an update may have replaced the file. In a session of its own, so that no signal meant for
	// others ends it.
	l.process = exec.Command("/proc/self/exe", Command)
	l.process.ExtraFiles = []*os.File{other, peer}
	l.process.Dir = "/"
	l.process.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOMAXPROCS=") { // the shim has two cores, the daemon all
			l.process.Env = append(l.process.Env, v)
		}
	}
	exited, err := gorunc.Monitor.Start(l.process)
	other.Close() // the daemon's death is heard when nobody else has it
	peer.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the process that loads device memory: %w", err), own.Close(), l.peer.Close())
	}
	ready := make(chan struct{})
	go l.follow(ready, func() int {
		status, _ := gorunc.Monitor.Wait(l.process, exited) // its channel says more
		return status
	})
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	if err := own.Send(o); err != nil {
		return nil, err
	}
	timeout := time.NewTimer(readyTime)
	defer timeout.Stop()
	select {
	case <-ready:
		return l, nil
	case <-l.ended:
		if l.err == nil {
			return nil, aborted("", "it has ended before it began")
		}
		return nil, l.err
	case <-timeout.C:
		return nil, aborted("try again when the host has less to do", "the snapshot is not open after %s", readyTime)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// follow listens to the daemon until it has ended.
func (l *Loading) follow(ready chan<- struct{}, wait func() int) {
	defer close(l.ended)
	told := false
	for {
		var r report
		files, err := l.channel.Receive(&r)
		channel.Close(files) // it sends none
		switch {
		case err != nil:
			_ = l.process.Process.Kill() // it has ended, or is of no use
			status := wait()
			if !told {
				l.err = died(status, err)
			}
			return
		case r.Ready && ready != nil:
			close(ready)
			ready = nil
		case r.Sent:
			told = true
		case r.Failed != nil:
			told = true
			l.err = r.Failed.Doing(doing)
		}
	}
}

// Peer is the end of the connection for the keeper.
func (l *Loading) Peer() *os.File { return l.peer }

// Wait waits until the daemon has ended. Without an error all is with the keeper.
func (l *Loading) Wait() error {
	<-l.ended
	return l.err
}

// endTime is how long the daemon may take to end when it is told to. It then tells the process that pulls the segments that it needs none; a daemon that is
// killed cannot, and that process takes its death for a failure.
const endTime = 2 * time.Second

// Close ends the daemon, and waits for it.
func (l *Loading) Close() error {
	_ = l.channel.HangUp() // it may have ended
	select {
	case <-l.ended:
	case <-time.After(endTime):
		_ = l.process.Process.Kill()
		<-l.ended
	}
	return errors.Join(l.channel.Close(), ignoreClosed(l.peer.Close()))
}

// ignoreClosed passes over a file that who it was given to has closed.
func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// doing is where errors arise.
const doing = "load device memory"

// aborted is an error of that kind.
func aborted(advice, text string, args ...any) error {
	return failure.New(errdefs.ErrAborted, advice, text, args...).Doing(doing)
}

// died is the error of a daemon that has said nothing.
func died(status int, err error) error {
	how := fmt.Sprintf("the process that did it has ended (status %d)", status)
	if !errors.Is(err, io.EOF) {
		how += ": " + err.Error()
	}
	return aborted("restore it again; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?)", "%s", how)
}
