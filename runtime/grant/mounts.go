package grant

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// place is a directory or file of a file system: the device that that has, and the path in it.
type place struct {
	device [2]int
	path   string
}

// holds tells whether the file or directory is this one or in it.
func (p place) holds(o place) bool {
	return p.device == o.device && (o.path == p.path || strings.HasPrefix(o.path, strings.TrimSuffix(p.path, "/")+"/"))
}

func of(m *mountinfo.Info) place { return place{[2]int{m.Major, m.Minor}, m.Root} }

// dangerous are the files of /proc that let a container's root reach the host.
var dangerous = []string{"proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs", "proc/kcore", "proc/keys", "proc/timer_list"}

// mounts compares what is mounted in a namespace.
func (k *check) mounts(v view) error {
	root, has := v.root, v.mounts
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("look at mounts: %w", err)
	}
	defer f.Close()
	host, err := readMounts(f)
	if err != nil {
		return err
	}
	sources, err := k.sources(host)
	if err != nil {
		return err
	}
	procs := 0
	for _, m := range has {
		k.propagation(m, host)
		if m.FSType == "proc" && m.Root == "/" && !k.wants(m) {
			procs++
		}
		if k.wants(m) || k.anew(m, host) || slices.ContainsFunc(sources, func(s place) bool { return s.holds(of(m)) }) || k.device(root, m) {
			continue
		}
		k.differ(Mounts, "a mount of %s (%s, %s) at %s", m.Source, m.FSType, m.Root, m.Mountpoint)
	}
	for _, m := range k.Spec.Mounts {
		top := slices.IndexFunc(has, func(h *mountinfo.Info) bool { return h.Mountpoint == path.Clean(m.Destination) })
		if top < 0 || m.Type == "cgroup" && has[top].FSType == "tmpfs" {
			continue // on cgroup v1, where runc leaves the tmpfs around the hierarchies writable in a pod
		}
		if readonly(m.Options) && !isReadonly(has[top]) {
			k.differ(Mounts, "%s writable, which the specification has read-only", m.Destination)
		}
	}
	if k.capabilities&sysAdmin != 0 {
		return nil // it may mount and unmount these itself
	}
	if procs > 1 || procs == 1 && slices.ContainsFunc(k.Spec.Mounts, func(m specs.Mount) bool { return m.Type == "proc" }) {
		k.differ(Privileges, "a further mount of proc")
	}
	return k.masks(root)
}

// propagation refuses mounts that would show the container's mounts on the host, and slaves that are private in the specification. Other slaves are allowed, as runc makes them: they show
// what the host mounts later below a source that was granted, with the host's flags, even if the mount itself is read-only.
func (k *check) propagation(m *mountinfo.Info, host []*mountinfo.Info) {
	hosts := slices.ContainsFunc(host, func(h *mountinfo.Info) bool { return peerGroup(h) != "" && peerGroup(h) == peerGroup(m) })
	private := k.capabilities&sysAdmin == 0 && // else it may mount what it likes there itself
		slices.ContainsFunc(k.Spec.Mounts, func(s specs.Mount) bool { return path.Clean(s.Destination) == m.Mountpoint && IsPrivate(s.Options) })
	if hosts || private && strings.Contains(m.Optional, "master:") {
		k.differ(Privileges, "propagation of the mount at %s (%s)", m.Mountpoint, m.Optional)
	}
}

// peerGroup is the field of a shared mount that names those that see the same; empty: it is not shared. Source: proc_pid_mountinfo(5).
func peerGroup(m *mountinfo.Info) string {
	for field := range strings.FieldsSeq(m.Optional) {
		if strings.HasPrefix(field, "shared:") {
			return field
		}
	}
	return ""
}

// readMounts reads what is mounted, the last first: it covers what was mounted before.
func readMounts(f *os.File) ([]*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, fmt.Errorf("look at mounts: %s: %w", f.Name(), err)
	}
	slices.Reverse(mounts)
	return mounts, nil
}

// sources are the places of the host that the container is granted: its root file system, and what its bind mounts are of.
func (k *check) sources(host []*mountinfo.Info) (sources []place, err error) {
	paths := []string{k.Rootfs}
	for _, m := range k.Spec.Mounts {
		if isBind(m) {
			paths = append(paths, m.Source)
		}
	}
	for _, at := range paths {
		found, err := filepath.EvalSymlinks(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return nil, fmt.Errorf("look at the source of a mount: %w", err)
		}
		// The last mount that the path is in; and all that are below, which come with it.
		whole := true
		for _, m := range host {
			switch {
			case strings.HasPrefix(m.Mountpoint, found+"/"):
				sources = append(sources, of(m))
			case whole && (place{path: m.Mountpoint}).holds(place{path: found}) && !slices.ContainsFunc(host, func(o *mountinfo.Info) bool {
				return len(o.Mountpoint) > len(m.Mountpoint) && (place{path: o.Mountpoint}).holds(place{path: found})
			}):
				whole = false
				sources = append(sources, place{of(m).device, path.Join(m.Root, strings.TrimPrefix(found, strings.TrimSuffix(m.Mountpoint, "/")))})
			}
		}
	}
	return sources, nil
}

// wants tells whether the specification has a mount that is no bind mount. One of cgroups is several mounts, on cgroup v1: a tmpfs, and one for each hierarchy.
func (k *check) wants(m *mountinfo.Info) bool {
	return slices.ContainsFunc(k.Spec.Mounts, func(s specs.Mount) bool {
		at := path.Clean(s.Destination)
		switch {
		case isBind(s):
			return false
		case s.Type == "cgroup" && strings.HasPrefix(m.FSType, "cgroup"):
			return m.Mountpoint == at || strings.HasPrefix(m.Mountpoint, at+"/") && (isReadonly(m) || !readonly(s.Options))
		case s.Type == "cgroup" && m.FSType == "tmpfs":
			return m.Mountpoint == at && isReadonly(m) // else it must be the container's own
		}
		return m.Mountpoint == at && s.Type == m.FSType
	})
}

// anew tells whether the kernel makes such a file system anew for a container, and this one was: the host does not have it, or it cannot be written to.
func (k *check) anew(m *mountinfo.Info, host []*mountinfo.Info) bool {
	kernel := m.FSType == "proc" || m.FSType == "sysfs" || strings.HasPrefix(m.FSType, "cgroup")
	if kernel && k.capabilities&sysAdmin != 0 { // it may mount these itself
		return true
	}
	switch m.FSType {
	case "proc":
		return m.Root == "/" && m.Mountpoint == "/proc" || m.Root != "/" && isReadonly(m)
	case "sysfs", "cgroup", "cgroup2":
		return isReadonly(m)
	case "tmpfs", "devpts", "mqueue":
		return !slices.ContainsFunc(host, func(h *mountinfo.Info) bool { return of(h).device == of(m).device })
	}
	return false
}

// device tells whether a mount is of a device that the container may have: runc mounts the host's, and hides files by /dev/null.
func (k *check) device(root string, m *mountinfo.Info) bool {
	fd, err := within(root, m.Mountpoint)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR && st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return false
	}
	return k.mayHave(st.Mode&unix.S_IFMT == unix.S_IFCHR, int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev)))
}

// ptsMajor is the number of terminals of devpts.
const ptsMajor = 136

// mayHave tells whether a container may have a device.
func (k *check) mayHave(character bool, major, minor int64) bool {
	if character && (major == 1 || major == 5 || major == ptsMajor) {
		ordinary := []int64{3, 5, 7, 8, 9}
		if major == 5 {
			ordinary = []int64{0, 1, 2}
		}
		return major == ptsMajor || slices.Contains(ordinary, minor)
	}
	return slices.ContainsFunc(k.Spec.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Major == major && d.Minor == minor })
}

// masks asks whether files of /proc can be reached that the specification hides or makes read-only.
func (k *check) masks(root string) error {
	for _, file := range dangerous {
		hidden := slices.ContainsFunc(k.Spec.Linux.MaskedPaths, sameAs(file))
		if !hidden && !slices.ContainsFunc(k.Spec.Linux.ReadonlyPaths, sameAs(file)) {
			continue
		}
		st, err := fileSystem(root, file)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at /%s of a restored process: %w", file, err)
		}
		if st.Type == unix.PROC_SUPER_MAGIC && (hidden || st.Flags&unix.ST_RDONLY == 0) {
			k.differ(Privileges, "/%s as the kernel has it, which the specification covers", file)
		}
	}
	return nil
}

func fileSystem(root, file string) (st unix.Statfs_t, err error) {
	fd, err := within(root, file)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	err = unix.Fstatfs(fd, &st)
	return st, err
}

func sameAs(file string) func(string) bool {
	return func(p string) bool { return path.Clean(p) == "/"+file }
}

// within opens a path as the process with this root sees it.
func within(root, file string) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, strings.TrimPrefix(file, "/"), &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
}

func isReadonly(m *mountinfo.Info) bool {
	return slices.Contains(strings.Split(m.Options, ","), "ro") || slices.Contains(strings.Split(m.VFSOptions, ","), "ro")
}

// readonly tells whether runc mounts read-only with such options. Source: runc, libcontainer/specconv, parseMountOptions.
func readonly(options []string) (yes bool) {
	for _, o := range options {
		switch o {
		case "ro", "rro":
			yes = true
		case "rw", "rrw":
			yes = false
		}
	}
	return yes
}

// IsPrivate tells whether runc takes a mount with such options out of the propagation of its source. Source: runc, libcontainer/specconv, initMaps; mount(2).
func IsPrivate(options []string) bool {
	return slices.ContainsFunc(options, func(o string) bool {
		return slices.Contains([]string{"private", "rprivate", "unbindable", "runbindable"}, o)
	})
}

func isBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}
