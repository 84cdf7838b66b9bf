package guard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// places is what CRIU needs. What is pointed at is replaced by the path at which it is in the namespace.
type places struct {
	root    *string
	sources []source // of bind mounts; one that is not there is left to CRIU to report
	work    string   // CRIU writes here
	images  string
	changed map[string][]byte // images that CRIU reads instead of those in images, by file name
	config  string
	has     map[specs.LinuxNamespaceType]bool // namespaces that the container has
}

// source is that of a bind mount.
type source struct {
	path     *string
	readonly bool // the specification has it so
}

// opened are descriptors that CRIU inherits: their paths may be covered.
type opened struct{ images, work, config int }

// scratch is where CRIU makes directories for mounts. Source: CRIU 4.2, criu/mount.c.
const scratch = "/tmp"

// namespaced are the files below /proc/sys that belong to a namespace of the process that writes them, and that CRIU restores. Source: CRIU 4.2, criu/net.c,
// criu/ipc_ns.c, criu/uts_ns.c.
var namespaced = []string{
	"net", "fs/mqueue", "kernel/hostname", "kernel/domainname", "kernel/sem", "kernel/sem_next_id", "kernel/msgmax", "kernel/msgmnb", "kernel/msgmni", "kernel/msg_next_id",
	"kernel/auto_msgmni", "kernel/shmall", "kernel/shmmax", "kernel/shmmni", "kernel/shm_next_id", "kernel/shm_rmid_forced", "kernel/ns_last_pid",
}

// ConfinementSupported returns an error where the kernel cannot make mounts read-only as confinement needs it: before Linux 5.12.
func ConfinementSupported() error {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("make mounts read-only: mount_setattr: %w", err)
	}
	return nil
}

// enter gives this thread a mount namespace of its own, in which only what is in p can be written to. Where CRIU does not restore into the host's network, names and
// queues, it does not have them itself either: what it is misled to set is of namespaces that end with it.
func enter(p places) (_ opened, err error) {
	if err := ConfinementSupported(); err != nil {
		return opened{}, err
	}
	flags := unix.CLONE_NEWNS
	for kind, flag := range map[specs.LinuxNamespaceType]int{specs.NetworkNamespace: unix.CLONE_NEWNET, specs.UTSNamespace: unix.CLONE_NEWUTS, specs.IPCNamespace: unix.CLONE_NEWIPC} {
		if p.has[kind] {
			flags |= flag
		}
	}
	if err := unix.Unshare(flags); err != nil {
		return opened{}, fmt.Errorf("make namespaces: %w", err)
	}
	if p.has[specs.NetworkNamespace] {
		if err := loopback(); err != nil { // CRIU tries the kernel out by it
			return opened{}, err
		}
	}
	// These stay what they are for the container, which gets mounts of its own from them: with the host's propagation, and writable unless the specification has them read-only.
	type tree struct {
		fd int
		to *string
	}
	var trees []tree
	for _, s := range append(p.sources, source{path: p.root}) {
		fd, err := unix.OpenTree(unix.AT_FDCWD, *s.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if errors.Is(err, unix.ENOENT) && s.path != p.root {
			continue
		}
		if err == nil && s.readonly {
			err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		}
		if err != nil {
			return opened{}, fmt.Errorf("open %s: %w", *s.path, err)
		}
		trees = append(trees, tree{fd, s.path})
	}
	work, err := unix.OpenTree(unix.AT_FDCWD, p.work, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return opened{}, fmt.Errorf("open %s: %w", p.work, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return opened{}, fmt.Errorf("keep mounts from the host: %w", err)
	}
	if err := readonly("/", true, unix.AT_RECURSIVE); err != nil {
		return opened{}, err
	}
	if err := kernelFiles(); err != nil {
		return opened{}, err
	}
	own, err := os.Executable()
	if err != nil {
		return opened{}, err
	}
	program := -1
	if strings.HasPrefix(own, scratch+"/") {
		if program, err = unix.OpenTree(unix.AT_FDCWD, own, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
			return opened{}, fmt.Errorf("open %s: %w", own, err)
		}
	}
	if err := unix.MoveMount(work, "", unix.AT_FDCWD, p.work, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return opened{}, fmt.Errorf("mount %s: %w", p.work, err)
	}
	if err := unix.Mount("", p.work, "", unix.MS_SLAVE, ""); err != nil { // images may be there, and others be mounted on them
		return opened{}, fmt.Errorf("keep mounts from the host: %w", err)
	}
	// They lose their close-on-exec mark by this.
	o := opened{}
	for _, open := range []struct {
		fd    *int
		path  string
		flags int
	}{{&o.images, p.images, unix.O_DIRECTORY}, {&o.work, p.work, unix.O_DIRECTORY}, {&o.config, p.config, 0}} {
		if *open.fd, err = unix.Open(open.path, unix.O_RDONLY|open.flags, 0); err != nil {
			return opened{}, fmt.Errorf("open %s: %w", open.path, err)
		}
	}
	if err := unix.Mount("cryo", scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1733"); err != nil {
		return opened{}, fmt.Errorf("mount %s: %w", scratch, err)
	}
	if err := replace(o.images, p.changed); err != nil {
		return opened{}, fmt.Errorf("replace images: %w", err)
	}
	// CRIU calls it as tar. Were it not there, CRIU would take the next tar in PATH, which bounds nothing.
	if program >= 0 {
		if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
			return opened{}, err
		}
		if err := place(own, program); err != nil {
			return opened{}, err
		}
		if err := unix.MoveMount(program, "", unix.AT_FDCWD, own, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return opened{}, fmt.Errorf("mount %s: %w", own, err)
		}
	}
	if p.has[specs.UserNamespace] {
		if err := reveal(); err != nil {
			return opened{}, err
		}
	}
	for i, t := range trees {
		path := filepath.Join(scratch, "source"+strconv.Itoa(i))
		if err := place(path, t.fd); err != nil {
			return opened{}, err
		}
		if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return opened{}, fmt.Errorf("mount %s: %w", *t.to, err)
		}
		*t.to = path
	}
	return o, nil
}

// reveal mounts what the kernel mounts anew in a user namespace only where it is there in full already, and can be written to. The path cannot be known, and there
// is no way to look for it but this process's own. Source: Linux, fs/namespace.c, mnt_already_visible.
func reveal() error {
	for _, kind := range []string{"proc", "sysfs"} {
		path := filepath.Join(scratch, rand.Text())
		if err := unix.Mkdir(path, 0o700); err != nil {
			return fmt.Errorf("make a directory for %s: %w", kind, err)
		}
		if err := unix.Mount(kind, path, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", kind, err)
		}
	}
	return nil
}

// place makes what a tree can be mounted on.
func place(path string, tree int) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return fmt.Errorf("look at what is to be mounted: %w", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := unix.Mkdir(path, 0o700); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		return nil
	}
	if err := unix.Mknod(path, unix.S_IFREG|0o600, 0); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// kernelFiles makes /proc writable, which is of processes, but for what is the host's in it: that is mounted on itself, read-only as all is by now.
func kernelFiles() error {
	const proc = "/proc"
	entries, err := os.ReadDir(proc)
	if err != nil {
		return fmt.Errorf("list %s: %w", proc, err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // a process that has ended
		}
		if err != nil {
			return fmt.Errorf("look at %s: %w", e.Name(), err)
		}
		if _, err := strconv.Atoi(e.Name()); err == nil || info.Mode().IsRegular() && info.Mode().Perm()&0o222 == 0 || info.Mode().Type() == fs.ModeSymlink {
			continue
		}
		if err := onItself(filepath.Join(proc, e.Name())); err != nil {
			return err
		}
	}
	if err := readonly(proc, false, 0); err != nil {
		return err
	}
	for _, name := range namespaced {
		path := filepath.Join(proc, "sys", name)
		err := onItself(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel does not have it
		}
		if err == nil {
			err = readonly(path, false, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func onItself(path string) error {
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", path, err)
	}
	return nil
}

func readonly(path string, yes bool, flags uint) error {
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if yes {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, path, flags, &attr); err != nil {
		return fmt.Errorf("make %s read-only (%t): %w", path, yes, err)
	}
	return nil
}
