package confinement

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/grant"
)

// socketName is where the shim listens, in the container's bundle.
const socketName = "criu.sock"

// Check looks at a restored container before it runs: the id of its first process, and that of CRIU.
type Check func(init, criu int) error

// Relay is what passes on what runc and CRIU say to each other in a restore.
type Relay struct {
	path     string
	listener *net.UnixListener
	check    Check
	done     chan struct{}
	err      error // of check; set before done is closed

	mu   sync.Mutex
	ends [2]*net.UnixConn // of runc and CRIU, guarded by mu; nil until they are here
}

// Listen waits for the restore of the container with this bundle. The caller closes it.
func Listen(bundle string, check Check) (*Relay, error) {
	r := &Relay{path: filepath.Join(bundle, socketName), check: check, done: make(chan struct{})}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for CRIU: %w", err)
	}
	path, done, err := channel.SocketPath(bundle, socketName)
	if err != nil {
		return nil, fmt.Errorf("listen for CRIU: %w", err)
	}
	defer done()
	if r.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}); err != nil {
		return nil, fmt.Errorf("listen for CRIU: %w", err)
	}
	r.listener.SetUnlinkOnClose(false)
	go func() {
		defer close(r.done)
		r.err = r.serve()
	}()
	return r, nil
}

// dial connects with the shim that restores the container with this bundle.
func dial(bundle string) (fd int, err error) {
	path, done, err := channel.SocketPath(bundle, socketName)
	if err != nil {
		return -1, fmt.Errorf("find the shim that restores: %w", err)
	}
	defer done()
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		return -1, fmt.Errorf("find the shim that restores: %w", err)
	}
	return fd, nil
}

// Close ends it, and gives the error of the check, if that was made. What CRIU and runc say then is lost, so both must have ended.
func (r *Relay) Close() error {
	r.listener.Close()
	r.mu.Lock()
	for _, c := range r.ends {
		if c != nil {
			c.Close()
		}
	}
	r.mu.Unlock()
	<-r.done
	_ = os.Remove(r.path)
	return r.err
}

func (r *Relay) serve() error {
	conn, err := r.listener.AcceptUnix()
	if err != nil {
		return nil //nolint:nilerr // closed; runc may have failed before
	}
	defer conn.Close()
	oob := make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil //nolint:nilerr // it has ended before it was CRIU, and has told runc
	}
	ends, err := connections(oob[:n])
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.ends = ends
	r.mu.Unlock()
	runc, criu := ends[0], ends[1]
	var both sync.WaitGroup
	defer both.Wait()
	defer criu.Close()
	defer runc.Close()
	var failed error
	both.Go(func() { // one half closes when the other does
		_, _ = pass(criu, runc, nil)
		_ = criu.CloseWrite()
	})
	first := 0
	looked := false
	failed, _ = pass(runc, criu, func(data []byte) error {
		var response rpc.CriuResp
		if err := response.UnmarshalVT(data); err != nil || response.GetType() != rpc.CriuReqType_NOTIFY {
			if err == nil && response.GetType() == rpc.CriuReqType_RESTORE && response.GetSuccess() && !looked {
				return errors.New("CRIU says that it has restored the container, and has not said before that it was about to")
			}
			return nil //nolint:nilerr // runc says what it thinks of it
		}
		notify := response.GetNotify()
		if pid := notify.GetPid(); pid != 0 {
			first = int(pid)
		}
		if notify.GetScript() != "pre-resume" {
			return nil
		}
		looked = true
		return r.look(first, criu)
	})
	if failed != nil {
		if data, err := (&rpc.CriuResp{Type: new(rpc.CriuReqType_RESTORE), Success: new(false)}).MarshalVT(); err == nil {
			_, _ = runc.Write(data)
		}
	}
	return failed
}

// look asks whether the container may run, and ends it and CRIU where it may not. CRIU has it stopped, and would let it go, also when it is killed itself: so what it
// has stopped is killed first, and does not run any more.
func (r *Relay) look(first int, criu *net.UnixConn) error {
	raw, err := criu.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	if e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return fmt.Errorf("find CRIU: %w", errors.Join(e, err))
	}
	if first == 0 {
		return errors.New("CRIU has not said which process is the container's first")
	}
	refused := r.check(first, int(peer.Pid))
	if refused == nil {
		return nil
	}
	pids, err := grant.Tree(first)
	if err != nil {
		pids, refused = []int{first}, errors.Join(refused, err) // the others die with it
	}
	for _, pid := range append(pids, int(peer.Pid)) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return refused
}

// connections takes the sockets of runc and of CRIU from a message.
func connections(oob []byte) (ends [2]*net.UnixConn, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return ends, fmt.Errorf("take CRIU's socket: %d messages, %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != len(ends) {
		return ends, fmt.Errorf("take CRIU's socket: %d descriptors, %w", len(fds), err)
	}
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "criu")
		c, connErr := net.FileConn(f)
		f.Close()
		if u, ok := c.(*net.UnixConn); ok {
			ends[i] = u
			continue
		}
		err = errors.Join(err, fmt.Errorf("take CRIU's socket: %T, %w", c, connErr))
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				c.Close()
			}
		}
	}
	return ends, err
}

// maxMessage is as much as runc takes.
const maxMessage = 10 * 4096

// pass passes on messages, with descriptors, until one side ends. refused is what see says of one, which is not passed on then.
func pass(to, from *net.UnixConn, see func(data []byte) error) (refused, err error) {
	data, oob := make([]byte, maxMessage), make([]byte, 4096)
	for {
		n, oobn, flags, _, err := from.ReadMsgUnix(data, oob)
		if err != nil || n == 0 {
			return nil, err
		}
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			return fmt.Errorf("a message between runc and CRIU of more than %d bytes", maxMessage), nil
		}
		if see != nil {
			if err := see(data[:n]); err != nil {
				closeRights(oob[:oobn])
				return err, nil
			}
		}
		_, _, err = to.WriteMsgUnix(data[:n], oob[:oobn], nil)
		closeRights(oob[:oobn])
		if err != nil {
			return nil, err
		}
	}
}

// closeRights closes descriptors that a message has brought.
func closeRights(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
		}
	}
}
