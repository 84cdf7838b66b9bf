package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// Server is the process that loads device memory.
type Server interface {
	// Load hands it its ends of a channel and of a connection to the keeper.
	Load(channel, keeper *os.File) error
}

// report is what the server tells; one of its members is there.
type report struct {
	Ready  bool           `json:"ready,omitempty"` // all that is needed is open
	Sent   bool           `json:"sent,omitempty"`  // all is with the keeper; the last
	Failed *failure.Error `json:"failed,omitempty"`
}

// Loading is device memory that is being loaded.
type Loading struct {
	channel *channel.Channel
	peer    *os.File
	ended   chan struct{} // closed when the server is through, or has ended, and err is there
	err     error         // valid when ended is closed
}

// readyTime is how long the server may take to open a snapshot.
const readyTime = 2 * time.Minute

// Start hands the server its channels and waits until it has opened the snapshot. Errors are the server's. The caller closes it.
func Start(ctx context.Context, server Server) (_ *Loading, err error) {
	own, other, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	toKeeper, peer, err := connection()
	if err != nil {
		return nil, errors.Join(err, own.Close(), other.Close())
	}
	l := &Loading{channel: own, peer: toKeeper, ended: make(chan struct{})}
	err = server.Load(other, peer)
	other.Close() // the server's death is heard when nobody else has it
	peer.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", doing, err), own.Close(), l.peer.Close())
	}
	ready := make(chan struct{})
	go l.follow(ready)
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
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

// connection gives the ends of a connection on which package ring speaks: the keeper's, and that of who loads.
func connection() (keeper, loader *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return os.NewFile(uintptr(pair[0]), "keeper"), os.NewFile(uintptr(pair[1]), "loader"), nil
}

// follow listens to the server until it says no more.
func (l *Loading) follow(ready chan<- struct{}) {
	defer close(l.ended)
	told := false
	for {
		var r report
		files, err := l.channel.Receive(&r)
		channel.Close(files) // it sends none
		switch {
		case err != nil:
			if !told {
				l.err = died(err)
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

// Wait waits until the server is through. Without an error all is with the keeper.
func (l *Loading) Wait() error {
	<-l.ended
	return l.err
}

// endTime is how long the server may take to end the loading when it is told to.
const endTime = 2 * time.Second

// Close ends the loading, and waits for that.
func (l *Loading) Close() error {
	_ = l.channel.HangUp() // it may have ended
	select {
	case <-l.ended:
	case <-time.After(endTime):
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

// died is the error of a server that has said nothing.
func died(err error) error {
	how := "the restore process has ended"
	if !errors.Is(err, io.EOF) {
		how += ": " + err.Error()
	}
	return aborted("restore it again; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?)", "%s", how)
}
