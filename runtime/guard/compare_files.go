package guard

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/criu"
)

// view is what is mounted in a mount namespace, seen from the namespace's root directory.
type view struct {
	pid    int                        // a process in it
	root   string                     // path of its root directory
	mounts []*mountinfo.Info          // the last first: it covers what was mounted before
	ids    map[uint64]*mountinfo.Info // the same, by their ids
}

// viewOf returns the view of a process's mount namespace. The caller must call closed when it no longer needs the view.
func viewOf(pid int) (v view, closed func(), err error) {
	root := -1
	err = inside(pid, func(proc *os.Root) (err error) {
		f, err := proc.Open(fmt.Sprintf("%d/mountinfo", unix.Gettid()))
		if err != nil {
			return err
		}
		defer f.Close()
		if v.mounts, err = readMounts(f); err != nil {
			return err
		}
		root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return v, nil, err
	}
	v.pid, v.root, v.ids = pid, fmt.Sprintf("/proc/self/fd/%d", root), map[uint64]*mountinfo.Info{}
	for _, m := range v.mounts {
		v.ids[uint64(m.ID)] = m
	}
	return v, func() { _ = unix.Close(root) }, nil
}

// inside calls do in the mount namespace of a process. proc is this host's /proc: the container has another one.
func inside(pid int, do func(proc *os.Root) error) error {
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return fmt.Errorf("look at mounts: %w", err)
	}
	defer proc.Close()
	if err := criu.InNamespace(unix.CLONE_NEWNS, fmt.Sprintf("/proc/%d/ns/mnt", pid), func() error { return do(proc) }); err != nil {
		return fmt.Errorf("look into the mount namespace of process %d: %w", pid, err)
	}
	return nil
}

// follow removes the flag nosymfollow from mounts to which criu.FollowNone gave it.
func (k *check) follow(v view) error {
	const flag = "nosymfollow"
	var again []string
	for _, m := range v.mounts {
		if slices.Contains(strings.Split(m.Options, ","), flag) && !slices.ContainsFunc(k.Spec.Mounts, func(s specs.Mount) bool {
			return filepath.Clean(s.Destination) == m.Mountpoint && slices.Contains(s.Options, flag)
		}) {
			again = append(again, m.Mountpoint)
		}
	}
	if len(again) == 0 {
		return nil
	}
	return inside(v.pid, func(*os.Root) error {
		for _, at := range again {
			if err := unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_SYMLINK_NOFOLLOW, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NOSYMFOLLOW}); err != nil {
				return fmt.Errorf("have symlinks followed in %s: %w", at, err)
			}
		}
		return nil
	})
}

// files checks the files that a process has open or mapped, its program, and its root and working directory. Each must be on a mount of the container, or be one that the kernel makes for any
// process. CRIU opens files by name, and a user who shares a directory with the container could replace a reviewed file by a symlink to a file of the host. It opens them as root: so each file
// of the host's must be one that the container's user could open, too.
func (k *check) files(pid int, v view) error {
	s, err := status(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return err
	}
	ids := strings.Fields(s["NSpid"])
	o := &opener{pid: pid}
	if len(ids) > 0 {
		o.own = "/" + ids[len(ids)-1]
	}
	dir := fmt.Sprintf("/proc/%d/", pid)
	links := []string{"cwd", "root", "exe"}
	for _, in := range []string{"fd", "map_files"} {
		entries, err := os.ReadDir(dir + in)
		if err != nil {
			return fmt.Errorf("look at the files of a restored process: %w", err)
		}
		for _, e := range entries {
			links = append(links, in+"/"+e.Name())
		}
	}
	for _, link := range links {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, dir+link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_MODE|unix.STATX_UID|unix.STATX_GID|unix.STATX_INO|unix.STATX_MNT_ID, &st)
		if errors.Is(err, unix.ENOENT) {
			continue // the first thread of a process has ended before others
		}
		m := v.ids[st.Mnt_id]
		if err == nil && m != nil {
			err = k.look(o, link, m, st)
		}
		if err == nil && m == nil {
			var own bool
			if own, err = k.unmounted(dir, dir+link, st); err == nil && !own {
				name, _ := os.Readlink(dir + link)
				k.differences = append(k.differences, fmt.Sprintf("a file that is on none of its mounts (%s, as %s)", name, filepath.Dir("/"+link)))
			}
		}
		if err != nil {
			return fmt.Errorf("look at a file of a restored process: %s: %w", link, err)
		}
	}
	return k.openers(o, v)
}

// aioRing is the file system of memory of io_setup(2). Source: Linux, fs/aio.c, AIO_RING_MAGIC.
const aioRing = 0xa10a10a1

// unmountable are file systems that have no mount in any namespace.
var unmountable = []int64{unix.PIPEFS_MAGIC, unix.SOCKFS_MAGIC, unix.ANON_INODE_FS_MAGIC, unix.PID_FS_MAGIC, aioRing}

// unmounted reports whether a container may have a file that is on none of its mounts: a pipe or socket, shared memory, a namespace that the process is in, or a device that every container
// has.
func (k *check) unmounted(dir, path string, st unix.Statx_t) (bool, error) {
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		return st.Rdev_major != trust.TerminalMajor && k.mayHave(kind == unix.S_IFCHR, int64(st.Rdev_major), int64(st.Rdev_minor)), nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false, err
	}
	device := unix.Mkdev(st.Dev_major, st.Dev_minor)
	switch fs.Type {
	case unix.TMPFS_MAGIC:
		return sharedMemory(0, device)
	case unix.HUGETLBFS_MAGIC:
		return sharedMemory(unix.MFD_HUGETLB|(bits.Len64(uint64(fs.Bsize))-1)<<unix.MFD_HUGE_SHIFT, device)
	case unix.NSFS_MAGIC:
		own, err := os.ReadDir(dir + "ns")
		for _, e := range own {
			var other unix.Stat_t
			if unix.Stat(dir+"ns/"+e.Name(), &other) == nil && other.Ino == st.Ino {
				return true, nil
			}
		}
		return false, err
	}
	return slices.Contains(unmountable, fs.Type), nil
}

// sharedMemory reports whether a device is the kernel's own file system of shared memory. flags are those of memfd_create(2) for the size of its pages.
func sharedMemory(flags int, device uint64) (bool, error) {
	fd, err := unix.MemfdCreate("cryo", flags|unix.MFD_CLOEXEC)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return false, nil // there are no such pages
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Dev == device, err
}
