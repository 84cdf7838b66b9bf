package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/record"
)

// HostNode returns a device node of this host as a specification describes it. It follows no links.
func HostNode(name string) (specs.LinuxDevice, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return specs.LinuxDevice{}, fmt.Errorf("look at device %s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return specs.LinuxDevice{}, fmt.Errorf("look at device %s: it is no character device: %w", name, fs.ErrInvalid)
	}
	return specs.LinuxDevice{Path: name, Type: "c", Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev))}, nil
}

// unit matches nodes of single GPUs.
var unit = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/dev/nvidia[0-9]+$`) })

// MakeNodes makes the device nodes of a restored container those of this host: CRIU makes them with the numbers they had.
// root is the container's root directory as a process of it sees it, /proc/PID/root. Nodes of single GPUs that were there and are not
// any more are removed. The container is not trusted: nothing is followed out of its /dev.
func MakeNodes(root string, nodes []specs.LinuxDevice, were []record.GPUNode) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the container's root: %w", err)
	}
	defer unix.Close(dir)
	now := map[string]bool{}
	for _, n := range nodes {
		name := path.Clean(n.Path)
		now[name] = true
		if err := makeNode(dir, name, n); err != nil {
			return fmt.Errorf("make device node %s: %w", name, err)
		}
	}
	for _, n := range were {
		if name := path.Clean(n.Path); unit().MatchString(name) && !now[name] {
			if err := removeNode(dir, name); err != nil {
				return fmt.Errorf("remove device node %s: %w", name, err)
			}
		}
	}
	return nil
}

// below opens a directory of the container below /dev, and makes it where it is missing.
func below(root int, dir string) (int, error) {
	rel, ok := strings.CutPrefix(dir, "/dev")
	if !ok || rel != "" && rel[0] != '/' {
		return -1, fmt.Errorf("it is not below /dev: %w", fs.ErrInvalid)
	}
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, "dev", how)
	for part := range strings.SplitSeq(strings.Trim(rel, "/"), "/") {
		if err != nil || part == "" {
			break
		}
		if err = unix.Mkdirat(fd, part, 0o755); errors.Is(err, fs.ErrExist) {
			err = nil
		}
		parent := fd
		if err == nil {
			fd, err = unix.Openat2(parent, part, how)
		}
		_ = unix.Close(parent)
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func makeNode(root int, name string, n specs.LinuxDevice) error {
	if n.Type != "c" && n.Type != "u" {
		return fmt.Errorf("its type is %q: %w", n.Type, fs.ErrInvalid)
	}
	dir, err := below(root, filepath.Dir(name))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	base, number := filepath.Base(name), unix.Mkdev(uint32(n.Major), uint32(n.Minor))
	var st unix.Stat_t
	err = unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == number:
		return nil
	case err == nil:
		if err := unix.Unlinkat(dir, base, 0); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	mode, uid, gid := os.FileMode(0o666), 0, 0
	if n.FileMode != nil {
		mode = n.FileMode.Perm()
	}
	if n.UID != nil {
		uid = int(*n.UID)
	}
	if n.GID != nil {
		gid = int(*n.GID)
	}
	if err := unix.Mknodat(dir, base, unix.S_IFCHR|uint32(mode), int(number)); err != nil {
		return err
	}
	// Modes are cut by this process's umask; the node is ours, and nothing else can have taken its place unless the container
	// has put it there, which then has no more than it had.
	if err := unix.Fchownat(dir, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return chmod(dir, base, number, mode)
}

// chmod sets the mode of a node if it is the one with that number.
func chmod(dir int, base string, number uint64, mode os.FileMode) error {
	fd, err := unix.Openat(dir, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != number {
		return fmt.Errorf("it was replaced: %w", fs.ErrInvalid)
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), uint32(mode))
}

func removeNode(root int, name string) error {
	dir, err := below(root, filepath.Dir(name))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	err = unix.Fstatat(dir, filepath.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Unlinkat(dir, filepath.Base(name), 0)
}
