package guard

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/trust"
)

// masks asks for each path that the specification hides or makes read-only whether it is. One that is of hardware is noted, to be covered later.
func (k *check) masks(v view) error {
	l := k.Spec.Linux
	for i, file := range slices.Concat(l.MaskedPaths, l.ReadonlyPaths) {
		file = path.Clean(file)
		fd, err := within(v.root, file)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at %s of a restored process: %w", file, err)
		}
		hidden := i < len(l.MaskedPaths)
		covered, err := isCovered(fd, hidden)
		_ = unix.Close(fd)
		switch {
		case err != nil:
			return fmt.Errorf("look at %s of a restored process: %w", file, err)
		case covered, !hidden && slices.Contains(l.MaskedPaths, file): // it is looked at there
		case slices.Contains(trust.HostProcFiles, file):
			k.differ(Privileges, "%s as the kernel has it, which the specification covers", file)
		default:
			k.uncovered = append(k.uncovered, uncovered{pid: v.pid, path: file, hidden: hidden})
		}
	}
	return nil
}

// uncovered is a path that the specification hides or makes read-only, or mounts with certain flags, and that is not so in a mount namespace.
type uncovered struct {
	pid    int // a process in it
	path   string
	hidden bool
	flags  uint64 // of mount_setattr(2), which the mount lacks; 0: it is about the path
}

// isCovered reports whether a file is hidden as runc hides it, by /dev/null or a read-only file system in memory, or read-only. Source: runc, libcontainer/rootfs_linux.go, maskPaths.
func isCovered(fd int, hidden bool) (bool, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		return false, err
	}
	switch readonly := fs.Flags&unix.ST_RDONLY != 0; {
	case !hidden:
		return readonly, nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return readonly && fs.Type == unix.TMPFS_MAGIC, nil
	}
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3), nil
}

// hidden refuses files of the kernel that a process has open or mapped though the specification hides them: what covers them does not close them.
func (k *check) hidden(pid int) error {
	if k.capabilities&sysAdmin != 0 {
		return nil
	}
	dir := fmt.Sprintf("/proc/%d/", pid)
	links := []string{dir + "cwd", dir + "exe"}
	for _, in := range []string{"fd/*", "map_files/*"} {
		found, err := filepath.Glob(dir + in)
		if err != nil {
			return err
		}
		links = append(links, found...)
	}
	for _, link := range links {
		name, err := os.Readlink(link)
		if err != nil || !slices.ContainsFunc(k.Spec.Linux.MaskedPaths, func(masked string) bool { return (mountPlace{path: path.Clean(masked)}).holds(mountPlace{path: name}) }) {
			continue //nolint:nilerr // it has ended
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(link, &fs); err != nil {
			return fmt.Errorf("look at a file of a restored process: %w", err)
		}
		if fs.Type == unix.PROC_SUPER_MAGIC || fs.Type == unix.SYSFS_MAGIC {
			k.differ(Privileges, "the file %s of the kernel, which the specification hides", name)
		}
	}
	return nil
}

// cover covers what is not covered, as runc would have done.
func (k *check) cover() error {
	for _, u := range k.uncovered {
		if err := u.cover(); err != nil {
			return fmt.Errorf("cover %s of a restored process: %w", u.path, err)
		}
	}
	return nil
}

func (u uncovered) cover() error {
	if u.flags != 0 {
		return inside(u.pid, func(*os.Root) error {
			return unix.MountSetattr(unix.AT_FDCWD, u.path, unix.AT_SYMLINK_NOFOLLOW, &unix.MountAttr{Attr_set: u.flags})
		})
	}
	null, err := unix.OpenTree(unix.AT_FDCWD, os.DevNull, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	if err := unix.MountSetattr(null, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return err
	}
	empty, err := emptyDirectory()
	if err != nil {
		return err
	}
	defer unix.Close(empty)
	return inside(u.pid, func(*os.Root) error {
		at, err := unix.Openat2(unix.AT_FDCWD, u.path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
		if err != nil {
			return err
		}
		defer unix.Close(at)
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			return err
		}
		over := null
		switch {
		case !u.hidden:
			if over, err = unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE); err != nil {
				return err
			}
			defer unix.Close(over)
			if err := unix.MountSetattr(over, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}); err != nil {
				return err
			}
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			over = empty
		}
		return unix.MoveMount(over, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	})
}

// emptyDirectory makes a file system in memory that is empty and read-only.
func emptyDirectory() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, o := range []string{"nr_blocks", "nr_inodes"} { // as runc
		if err := unix.FsconfigSetString(fs, o, "1"); err != nil {
			return -1, err
		}
	}
	if err := errors.Join(unix.FsconfigSetFlag(fs, "ro"), unix.FsconfigCreate(fs)); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
}
