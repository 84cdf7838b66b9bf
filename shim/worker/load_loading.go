package worker

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// LoadServer is the process that loads device memory.
type LoadServer interface {
	// Load hands it its ends of a channel and of a connection to the keeper.
	Load(channel, keeper *os.File) error
}

// report is the server's only message: all is with the keeper, or why not.
type report struct {
	Failed *failure.Error `json:"failed,omitempty"`
}

// Loading is device memory that is being loaded.
type Loading struct {
	channel *channel.Channel
	peer    *os.File
	ended   chan struct{} // closed when the server is through, or has ended, and err is there
	err     error         // valid when ended is closed
}

// StartLoading hands the server its channels, and returns at once: it opens the snapshot meanwhile. The caller closes it.
func StartLoading(server LoadServer) (*Loading, error) {
	own, other, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	keeperEnd, peer, err := connection()
	if err != nil {
		return nil, errors.Join(err, own.Close(), other.Close())
	}
	l := &Loading{channel: own, peer: keeperEnd, ended: make(chan struct{})}
	err = server.Load(other, peer)
	other.Close() // the server's death is heard when no other process has it
	peer.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", loadDoing, err), own.Close(), l.peer.Close())
	}
	go l.follow()
	return l, nil
}

// connection returns the ends of a connection on which package device speaks: the keeper's, and the loader's.
func connection() (keeperEnd, loader *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return os.NewFile(uintptr(pair[0]), "keeper"), os.NewFile(uintptr(pair[1]), "loader"), nil
}

// follow waits for what the server reports.
func (l *Loading) follow() {
	defer close(l.ended)
	var r report
	files, err := l.channel.Receive(&r)
	channel.Close(files) // it sends none
	switch {
	case err != nil:
		l.err = ErrDied.Doing(loadDoing)
	case r.Failed != nil:
		l.err = r.Failed.Doing(loadDoing)
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

// ignoreClosed passes over a file that its taker has closed.
func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// loadDoing is where errors arise.
const loadDoing = "load device memory"
