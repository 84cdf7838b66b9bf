package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/lazypages"
	"github.com/cryo-project/cryo/shim/notes"
	"github.com/cryo-project/cryo/shim/order"
)

// Command is the argument that makes the shim's program the daemon.
const Command = "fill"

// Filling is a container whose memory is being filled in.
type Filling struct {
	channel line
	process *exec.Cmd
	relayed chan struct{} // closed when CRIU has said that all tasks run, or has hung up before
	opened  atomic.Bool   // the daemon has opened the snapshot
	there   atomic.Pointer[notes.Memory]
	taken   chan struct{} // closed when the daemon has all it needs of all of them
	done    chan struct{} // closed when result and err are there
	ended   chan struct{} // closed when the daemon has ended

	mu       sync.Mutex
	listener *net.UnixListener // guarded by mu
	held     map[int]int       // userfaultfds by number; guarded by mu
	next     int               // number of the next task

	hungUp error  // valid when relayed is closed: CRIU's hanging up
	result Result // valid when done is closed
	err    error  // likewise
	status int    // valid when ended is closed
}

// How long the daemon may take to open a snapshot, and CRIU to tell that what runs already runs.
const (
	readyTime    = 2 * time.Minute
	restoredTime = 30 * time.Second
)

// Start starts the daemon, listens for the CRIU with this work directory, and returns at once: the daemon opens what it needs meanwhile.
// Where it cannot, Done is closed, and Result gives its error. The caller ends it.
func Start(work string, o order.Order) (_ *Filling, err error) {
	own, other, err := newPair()
	if err != nil {
		return nil, err
	}
	f := &Filling{channel: own, relayed: make(chan struct{}), taken: make(chan struct{}), done: make(chan struct{}), ended: make(chan struct{}), held: make(map[int]int)}
	// By this process, not by name: an update may have replaced the file. In a session of its own, so that no signal meant for
	// others ends it.
	f.process = exec.Command("/proc/self/exe", Command)
	f.process.ExtraFiles = []*os.File{other}
	f.process.Dir = "/"
	f.process.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOMAXPROCS=") { // the shim has two cores, the daemon all
			f.process.Env = append(f.process.Env, v)
		}
	}
	exited, err := gorunc.Monitor.Start(f.process)
	other.Close() // the daemon's death is heard when nobody else has it
	if err != nil {
		own.Close()
		return nil, fmt.Errorf("start the process that fills in memory: %w", err)
	}
	go func() {
		f.status, _ = gorunc.Monitor.Wait(f.process, exited) // its channel says more
		close(f.ended)
	}()
	go f.follow(time.AfterFunc(readyTime, func() {
		f.fail(aborted("try again when the host has less to do, or use cryo restore --eager", "the snapshot is not open after %s", readyTime))
	}))
	defer func() {
		if err != nil {
			f.End()
		}
	}()
	if err := f.listen(work); err != nil {
		return nil, err
	}
	if err := own.send(message{Order: &o}, -1); err != nil {
		return nil, err
	}
	return f, nil
}

// listen makes the socket that CRIU looks for. Its path may be too long for a socket's address.
func (f *Filling) listen(work string) error {
	dir, err := os.Open(work)
	if err != nil {
		return fmt.Errorf("listen for CRIU: %w", err)
	}
	defer dir.Close()
	conn, err := dir.SyscallConn()
	if err != nil {
		return fmt.Errorf("listen for CRIU: %w", err)
	}
	var path string
	if err := conn.Control(func(fd uintptr) { path = fmt.Sprintf("/proc/self/fd/%d/%s", fd, lazypages.SocketName) }); err != nil {
		return fmt.Errorf("listen for CRIU: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return fmt.Errorf("listen for CRIU: %w", err)
	}
	listener.SetUnlinkOnClose(false) // by a descriptor that is another file's by then
	f.mu.Lock()
	f.listener = listener
	f.mu.Unlock()
	go func() {
		defer os.Remove(filepath.Join(work, lazypages.SocketName))
		err := f.relay(listener)
		listener.Close()
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // else CRIU has failed, and its log says why
			f.fail(failure.Of(err, errdefs.ErrAborted).Doing(doing))
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
	err = lazypages.Receive(conn, func(t lazypages.Task) error {
		f.mu.Lock()
		f.next++
		id := f.next
		f.held[id] = t.UFFD
		f.mu.Unlock()
		return f.channel.send(message{Task: &task{ID: id, PID: t.PID, Host: t.Host}}, t.UFFD)
	})
	if err != nil {
		return err
	}
	return f.channel.send(message{Restored: true}, -1)
}

// follow listens to the daemon until it has nothing more to say.
func (f *Filling) follow(late *time.Timer) {
	defer late.Stop()
	for {
		m, fd, err := f.channel.receive()
		switch {
		case err != nil:
			_ = f.process.Process.Kill() // it has ended, or is of no use
			<-f.ended
			if !errors.Is(err, io.EOF) {
				f.fail(fmt.Errorf("%w: %w", died(f.status), err))
				return
			}
			f.fail(died(f.status))
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
			f.fail(m.Failed.Doing(doing))
			return
		case m.Result != nil:
			f.settle(*m.Result, nil)
			f.release()
			return
		}
	}
}

// settle says how it ended; the first to say so is right.
func (f *Filling) settle(r Result, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.done:
	default:
		f.result, f.err = r, err
		close(f.done)
	}
}

func (f *Filling) fail(err error) { f.settle(Result{}, err) }

// Done is closed when nothing is missing any more, or it has failed: Result says which.
func (f *Filling) Done() <-chan struct{} { return f.done }

// PID is that of the daemon.
func (f *Filling) PID() int { return f.process.Process.Pid }

// Opened tells whether the daemon has opened the snapshot.
func (f *Filling) Opened() bool { return f.opened.Load() }

// There is how much memory the daemon has said is there; nil: it has not said yet.
func (f *Filling) There() *notes.Memory { return f.there.Load() }

// Ended is closed when the daemon has ended.
func (f *Filling) Ended() <-chan struct{} { return f.ended }

// Result is valid when Done is closed. After an error, processes wait for what they miss: they must be ended before End.
func (f *Filling) Result() (Result, error) { return f.result, f.err }

// Restored waits until CRIU has said that all tasks run, and the daemon has all it needs of them: CRIU's images may go then. Called when
// they do, it fails where CRIU has not asked for memory to be filled in: the processes run without it.
func (f *Filling) Restored(ctx context.Context) error {
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

// End lets go of everything and ends the daemon. Processes that still miss something read zeros from then on: they must have
// ended.
func (f *Filling) End() {
	f.fail(ErrEnded)
	_ = f.process.Process.Kill() // it may have ended
	f.release()
}

// release lets go of everything.
func (f *Filling) release() {
	f.channel.Close()
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
