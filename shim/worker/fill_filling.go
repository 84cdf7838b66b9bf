package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/fill"
)

// FillServer is the process that fills in memory.
type FillServer interface {
	// Fill hands it its end of a channel, and tells how many bytes a second it may fill in at most that no process waits for. 0: as many as it can.
	Fill(channel *os.File, rate int64) error
	PID() int
}

// Filling is a container whose memory is being filled in.
type Filling struct {
	channel link
	server  FillServer
	relayed chan struct{} // closed when CRIU has said that all tasks run, or has hung up before
	opened  atomic.Bool   // the server has opened the snapshot
	there   atomic.Pointer[MemoryNote]
	taken   chan struct{} // closed when the server has all it needs of all of them
	done    chan struct{} // closed when result and err are there
	ended   chan struct{} // closed when the server is through, or has ended

	mu       sync.Mutex
	listener *net.UnixListener // guarded by mu
	held     map[int]int       // userfaultfds by number; guarded by mu
	next     int               // number of the next task

	hungUp error      // valid when relayed is closed: CRIU's hanging up
	result FillResult // valid when done is closed
	err    error      // likewise
}

// How long the server may take to open a snapshot, and CRIU to tell that what runs already runs.
const (
	readyTime    = 2 * time.Minute
	restoredTime = 30 * time.Second
)

// StartFilling hands the server a channel, listens for the CRIU with this work directory, and returns at once: the server opens what it needs meanwhile.
// Where it cannot, Done is closed, and Result gives its error. The caller ends it.
func StartFilling(work string, server FillServer, rate int64) (_ *Filling, err error) {
	own, other, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	f := &Filling{channel: link{own}, server: server, relayed: make(chan struct{}), taken: make(chan struct{}), done: make(chan struct{}), ended: make(chan struct{}), held: make(map[int]int)}
	err = server.Fill(other, rate)
	other.Close() // the server's death is heard when no other process has it
	if err != nil {
		own.Close()
		return nil, fmt.Errorf("%s: %w", fillDoing, err)
	}
	go f.follow(time.AfterFunc(readyTime, func() {
		f.fail(aborted("try again when the host has less to do, or use cryo restore --eager", "the snapshot is not open after %s", readyTime))
	}))
	if err := f.listen(work); err != nil {
		f.End()
		return nil, err
	}
	return f, nil
}

// listen makes the socket that CRIU looks for.
func (f *Filling) listen(work string) error {
	path, done, err := channel.SocketPath(work, fill.SocketName)
	if err != nil {
		return fmt.Errorf("listen for CRIU: %w", err)
	}
	defer done()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return fmt.Errorf("listen for CRIU: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	f.mu.Lock()
	f.listener = listener
	f.mu.Unlock()
	go func() {
		defer os.Remove(filepath.Join(work, fill.SocketName))
		err := f.relay(listener)
		listener.Close()
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // else CRIU has failed, and its log says why
			f.fail(failure.Of(err, errdefs.ErrAborted).Doing(fillDoing))
			return
		}
		f.hungUp = err
		close(f.relayed)
	}()
	return nil
}

// relay passes on what CRIU sends.
func (f *Filling) relay(listener *net.UnixListener) error {
	conn, err := listener.AcceptUnix()
	if err != nil {
		return fmt.Errorf("listen for CRIU: %w", err)
	}
	defer conn.Close()
	err = fill.Receive(conn, func(t fill.Task) error {
		f.mu.Lock()
		f.next++
		id := f.next
		f.held[id] = t.UFFD
		f.mu.Unlock()
		return f.channel.Send(message{Task: &task{ID: id, PID: t.PID, Host: t.Host}}, t.UFFD)
	})
	if err != nil {
		return err
	}
	return f.channel.Send(message{Restored: true})
}

// follow listens to the server until it has nothing more to say.
func (f *Filling) follow(late *time.Timer) {
	defer close(f.ended)
	defer f.channel.Close()
	defer late.Stop()
	for {
		m, fd, err := f.channel.receive()
		switch {
		case err != nil:
			died := error(ErrDied.Doing(fillDoing))
			if !errors.Is(err, io.EOF) {
				died = fmt.Errorf("%w: %w", died, err)
			}
			f.fail(died)
			return
		case m.Ready:
			late.Stop()
			f.opened.Store(true)
		case m.Taken:
			close(f.taken)
		case m.Hold != 0 && fd >= 0:
			f.mu.Lock()
			f.held[m.Hold] = fd
			f.mu.Unlock()
		case m.Drop != 0:
			f.mu.Lock()
			if uffd, ok := f.held[m.Drop]; ok {
				_ = unix.Close(uffd)
				delete(f.held, m.Drop)
			}
			f.mu.Unlock()
		case m.There != nil:
			f.there.Store(m.There)
		case m.Failed != nil:
			f.fail(m.Failed.Doing(fillDoing)) // and what it holds of processes it lets go when they have ended
		case m.Result != nil:
			f.settle(*m.Result, nil)
			f.letGo()
		}
	}
}

// settle says how it ended; the first to say so is right.
func (f *Filling) settle(r FillResult, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.done:
	default:
		f.result, f.err = r, err
		close(f.done)
	}
}

func (f *Filling) fail(err error) { f.settle(FillResult{}, err) }

// Done is closed when nothing is missing any more, or it has failed: Result says which.
func (f *Filling) Done() <-chan struct{} { return f.done }

// PID is that of the server.
func (f *Filling) PID() int { return f.server.PID() }

// Opened reports whether the server has opened the snapshot.
func (f *Filling) Opened() bool { return f.opened.Load() }

// There is how much memory the server has said is there; nil: it has not said yet.
func (f *Filling) There() *MemoryNote { return f.there.Load() }

// Ended is closed when the server is through with this container, or has ended.
func (f *Filling) Ended() <-chan struct{} { return f.ended }

// Result is valid when Done is closed. After an error, processes wait for what they miss: they must be ended before End.
func (f *Filling) Result() (FillResult, error) { return f.result, f.err }

// Restored waits until CRIU has said that all tasks run, and the server has all it needs of them: CRIU's images may go then. Called when
// they do, it fails where CRIU has not asked for memory to be filled in: the processes run without it. With nil, nothing is to be filled in.
func (f *Filling) Restored(ctx context.Context) error {
	if f == nil {
		return nil
	}
	timeout := time.NewTimer(restoredTime)
	defer timeout.Stop()
	select {
	case <-f.relayed:
	case <-f.done:
		return f.err
	case <-timeout.C:
		return aborted("look for options of CRIU that forbid it (org.criu.config), or use cryo restore --eager", "CRIU has restored the container and did not ask for it")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if f.hungUp != nil {
		return f.hungUp
	}
	select {
	case <-f.taken: // in time, or done is closed
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// End lets go of everything. Processes that still miss something read zeros from then on, when the server lets go as well: they must have
// ended.
func (f *Filling) End() {
	f.fail(ErrFillEnded)
	f.channel.Close()
	f.letGo()
}

// Cause ends it after a restore that has failed, and tells whether it was the reason; nil is none.
func (f *Filling) Cause() (err error) {
	if f == nil {
		return nil
	}
	select {
	case <-f.done:
		err = f.err
	default:
	}
	f.End()
	return err
}

// letGo lets go of all processes, and listens for no more.
func (f *Filling) letGo() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener != nil {
		f.listener.Close()
	}
	for id, uffd := range f.held {
		_ = unix.Close(uffd)
		delete(f.held, id)
	}
}
