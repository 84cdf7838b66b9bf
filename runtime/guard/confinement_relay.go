package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/criu"
)

// socketName is where the shim listens, in the container's bundle.
const socketName = "criu.sock"

// ComparisonFunc looks at a restored container before it runs: the id of its first process, and that of CRIU.
type ComparisonFunc func(init, criu int) error

// NetworkFunc is called when a container has a network namespace of its own, before its network and its sockets are made. first is its first process.
type NetworkFunc func(first int) error

// Relay is what passes on what runc and CRIU say to each other in a restore.
type Relay struct {
	bundle   string
	listener *channel.Listener
	made     NetworkFunc // nil: nothing is done
	check    ComparisonFunc
	maker    *maker
	done     chan struct{}
	err      error // of check; set before done is closed

	mu   sync.Mutex
	ends [2]*channel.Channel // of runc and CRIU, guarded by mu; nil until they are here
}

// Listen waits for the restore of the container with this bundle. The caller closes it.
func Listen(bundle string, made NetworkFunc, check ComparisonFunc) (*Relay, error) {
	r := &Relay{bundle: bundle, made: made, check: check, done: make(chan struct{})}
	if err := os.Remove(filepath.Join(bundle, socketName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for CRIU: %w", err)
	}
	var err error
	if r.listener, err = channel.Listen(bundle, socketName); err != nil {
		return nil, fmt.Errorf("listen for CRIU: %w", err)
	}
	if r.maker, err = listenForNodes(bundle); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for device nodes: %w", err), r.listener.Close())
	}
	go func() {
		defer close(r.done)
		r.err = r.serve()
	}()
	return r, nil
}

// dial connects with the shim that restores the container with this bundle.
func dial(bundle string) (*channel.Channel, error) {
	shim, _, err := channel.Dial(bundle, socketName)
	if err != nil {
		return nil, fmt.Errorf("find the shim that restores: %w", err)
	}
	return shim, nil
}

// Close ends it, and gives the error of the check, if that was made. What CRIU and runc say then is lost, so both must have ended.
func (r *Relay) Close() error {
	r.listener.Close()
	r.maker.close()
	r.mu.Lock()
	for _, c := range r.ends {
		if c != nil {
			c.Close()
		}
	}
	r.mu.Unlock()
	<-r.done
	_ = os.Remove(filepath.Join(r.bundle, socketName))
	return r.err
}

func (r *Relay) serve() error {
	conn, err := r.listener.Accept(context.Background())
	if err != nil {
		return nil //nolint:nilerr // closed; runc may have failed before
	}
	defer conn.Close()
	_, fds, err := conn.ReceiveBytes()
	if err != nil {
		return nil //nolint:nilerr // it has ended before it was CRIU, and has told runc
	}
	if len(fds) != len(r.ends) {
		channel.Close(fds)
		return fmt.Errorf("take CRIU's socket: %d descriptors", len(fds))
	}
	runc, err := channel.Open(fds[0])
	if err != nil {
		channel.Close(fds[1:])
		return fmt.Errorf("take runc's socket: %w", err)
	}
	criu, err := channel.Open(fds[1])
	if err != nil {
		return errors.Join(fmt.Errorf("take CRIU's socket: %w", err), runc.Close())
	}
	r.mu.Lock()
	r.ends = [2]*channel.Channel{runc, criu}
	r.mu.Unlock()
	var both sync.WaitGroup
	defer both.Wait()
	defer criu.Close()
	defer runc.Close()
	both.Go(func() { // one half closes when the other does
		_ = pass(criu, runc, nil)
		_ = criu.HangUp()
	})
	first := 0
	looked := false
	failed := pass(runc, criu, func(data []byte) error {
		var response rpc.CriuResp
		if err := response.UnmarshalVT(data); err != nil || response.GetType() != rpc.CriuReqType_NOTIFY {
			if err == nil && response.GetType() == rpc.CriuReqType_RESTORE && response.GetSuccess() && !looked {
				return errors.New("CRIU says that it has restored the container, and has not said before that it was about to")
			}
			return nil //nolint:nilerr // runc says what it thinks of it
		}
		notify := response.GetNotify()
		if pid := int(notify.GetPid()); pid != 0 {
			if !ComesFrom(pid, os.Getpid()) { // nor is it looked at, or ended
				return fmt.Errorf("CRIU says that the container's first process is %d, which is none of the restore's", pid)
			}
			first = pid
		}
		switch notify.GetScript() {
		case "setup-namespaces":
			return r.network(first)
		case "pre-resume":
			looked = true
			return r.look(first, criu)
		}
		return nil
	})
	if failed != nil {
		if data, err := (&rpc.CriuResp{Type: new(rpc.CriuReqType_RESTORE), Success: new(false)}).MarshalVT(); err == nil {
			_ = runc.SendBytes(data)
		}
	}
	return failed
}

// network sets the loopback device up where the container has a network of its own, before its sockets are made anew. runc does so when it creates a container, but not when
// it restores one, and has CRIU leave devices alone.
func (r *Relay) network(first int) error {
	spec, err := specified(r.bundle)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace && n.Path == "" }) {
		return nil
	}
	err = criu.InNamespace(unix.CLONE_NEWNET, fmt.Sprintf("/proc/%d/ns/net", first), loopback)
	if err == nil && r.made != nil {
		err = r.made(first)
	}
	return err
}

// look asks whether the container may run, and ends it and CRIU where it may not. CRIU has it stopped, and would let it go, also when it is killed itself: so what it
// has stopped is killed first, and does not run any more.
func (r *Relay) look(first int, criu *channel.Channel) error {
	peer, err := criu.Peer()
	if err != nil {
		return fmt.Errorf("find CRIU: %w", err)
	}
	if first == 0 {
		return errors.New("CRIU has not said which process is the container's first")
	}
	refused := r.check(first, peer)
	if refused == nil {
		return nil
	}
	pids, err := ProcessesOf(first)
	if err != nil {
		pids, refused = []int{first}, errors.Join(refused, err) // the others die with it
	}
	for _, pid := range append(pids, peer) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return refused
}

// pass passes on messages, with descriptors, until one side ends. refused is what see says of one, which is not passed on then.
func pass(to, from *channel.Channel, see func(data []byte) error) (refused error) {
	for {
		data, fds, err := from.ReceiveBytes()
		if errors.Is(err, io.ErrShortBuffer) {
			return fmt.Errorf("a message between runc and CRIU of more than %d bytes", channel.MaxMessage)
		}
		if err != nil {
			return nil
		}
		if see != nil {
			refused = see(data)
		}
		if refused == nil {
			err = to.SendBytes(data, fds...)
		}
		channel.Close(fds)
		if refused != nil || err != nil {
			return refused
		}
	}
}
