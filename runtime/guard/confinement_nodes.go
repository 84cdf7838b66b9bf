package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/channel"
)

// nodesSocket is where the program, called as tar, asks for device nodes, in the container's bundle.
const nodesSocket = "nodes.sock"

// maker makes the device nodes of a container's file systems in memory. CRIU and tar need no right to make any.
type maker struct {
	bundle   string
	listener *channel.Listener
	all      sync.WaitGroup

	mu     sync.Mutex
	closed bool               // guarded by mu
	conns  []*channel.Channel // guarded by mu
}

func listenForNodes(bundle string) (*maker, error) {
	if err := os.Remove(filepath.Join(bundle, nodesSocket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := channel.Listen(bundle, nodesSocket)
	if err != nil {
		return nil, err
	}
	m := &maker{bundle: bundle, listener: l}
	m.all.Go(func() {
		for {
			conn, err := l.Accept(context.Background())
			if err != nil {
				return // closed
			}
			m.mu.Lock()
			if m.conns = append(m.conns, conn); m.closed {
				_ = conn.CutOff()
			}
			m.mu.Unlock()
			m.all.Go(func() { m.serve(conn) })
		}
	})
	return m, nil
}

// close ends it. CRIU, which calls tar, must have ended.
func (m *maker) close() {
	_ = m.listener.Close()
	m.mu.Lock()
	m.closed = true
	for _, c := range m.conns {
		_ = c.CutOff()
	}
	m.mu.Unlock()
	m.all.Wait()
	_ = os.Remove(filepath.Join(m.bundle, nodesSocket))
}

// serve answers one call of tar.
func (m *maker) serve(conn *channel.Channel) {
	defer conn.Close()
	for {
		var asked DeviceNode
		fds, err := conn.Receive(&asked)
		if err != nil {
			return // it has ended
		}
		var answer NodeAnswer
		if answer.Made, err = m.node(fds, asked); err != nil {
			answer.Error = fmt.Sprintf("make a device node: %v", err)
		}
		channel.Close(fds)
		if conn.Send(answer) != nil {
			return
		}
	}
}

func (m *maker) node(fds []int, asked DeviceNode) (made bool, err error) {
	if len(fds) != 1 {
		return false, fmt.Errorf("%d directories", len(fds))
	}
	spec, err := specified(m.bundle)
	if err != nil {
		return false, err
	}
	return spec.node(fds[0], asked)
}

// node makes a device node, unless the container may not have it. A container whose processes can make nodes may have any. Owner and mode are the image's if its processes can change
// these, else those with which runc makes the node. Source: runc, libcontainer/specconv, createDevices.
func (s *specification) node(dir int, asked DeviceNode) (made bool, err error) {
	n := trust.DeviceNumber{Major: asked.Major, Minor: asked.Minor}
	i := slices.IndexFunc(s.Linux.Devices, func(d specs.LinuxDevice) bool { return trust.IsDeviceNumber(d, asked.Character, n) })
	if i < 0 && !trust.IsPlainDevice(asked.Character, n) && !s.can("CAP_MKNOD") {
		return false, nil
	}
	if !s.can("CAP_CHOWN") || !s.can("CAP_FOWNER") {
		asked.UID, asked.GID, asked.Mode = 0, 0, 0o666
		if i >= 0 {
			d := s.Linux.Devices[i]
			if d.FileMode != nil {
				asked.Mode = uint32(d.FileMode.Perm())
			}
			if d.UID != nil {
				asked.UID = int(*d.UID)
			}
			if d.GID != nil {
				asked.GID = int(*d.GID)
			}
		}
	}
	if err := containers(dir); err != nil {
		return false, err
	}
	kind := uint32(unix.S_IFBLK)
	if asked.Character {
		kind = unix.S_IFCHR
	}
	if asked.Name == "" || asked.Name == "." || asked.Name == ".." || strings.Contains(asked.Name, "/") {
		return false, fmt.Errorf("a name %.300q", asked.Name)
	}
	if err := unix.Mknodat(dir, asked.Name, kind, int(unix.Mkdev(uint32(asked.Major), uint32(asked.Minor)))); err != nil {
		return false, os.NewSyscallError("mknodat", err)
	}
	return true, makeOwn(dir, asked)
}

// makeOwn sets the owner and the mode of a device node that was just made. CRIU may have put another file in its place meanwhile, so makeOwn changes nothing but a device node in a file system of the container.
func makeOwn(dir int, asked DeviceNode) error {
	fd, err := unix.Openat(dir, asked.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFCHR && kind != unix.S_IFBLK || containers(fd) != nil {
		return fmt.Errorf("%.300q is another file now", asked.Name)
	}
	if err := unix.Fchownat(fd, "", asked.UID, asked.GID, unix.AT_EMPTY_PATH); err != nil {
		return os.NewSyscallError("fchownat", err)
	}
	// fchmod takes no such descriptor, and fchmodat follows links.
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), fs.FileMode(asked.Mode&0o777))
}

// containers returns an error unless a directory is in a file system in memory that this mount namespace does not have: one that CRIU has made.
func containers(dir int) error {
	var statfs unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(dir, &statfs), unix.Fstat(dir, &st)); err != nil {
		return err
	}
	if statfs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("the directory is of a file system of type %#x", statfs.Type)
	}
	has, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		same := uint64(st.Dev) == unix.Mkdev(uint32(m.Major), uint32(m.Minor))
		return !same, same
	})
	if err == nil && len(has) > 0 {
		err = fmt.Errorf("the directory is in a file system of the host's at %s", has[0].Mountpoint)
	}
	return err
}

// can reports whether a process of the container can have a capability.
func (s *specification) can(capability string) bool {
	p := s.Process
	c := p.Capabilities
	return c != nil && slices.Contains(c.Bounding, capability) &&
		(!p.NoNewPrivileges || p.User.UID == 0 && slices.Contains(c.Permitted, capability) || slices.Contains(c.Ambient, capability))
}
