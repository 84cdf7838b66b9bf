package guard

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

	"github.com/cryo-project/cryo/image/trust"
)

// mountPlace is a directory or file of a file system: the device that that has, and the path in it.
type mountPlace struct {
	device [2]int
	path   string
}

// holds reports whether the file or directory is this one or in it.
func (p mountPlace) holds(o mountPlace) bool {
	return p.device == o.device && (o.path == p.path || strings.HasPrefix(o.path, strings.TrimSuffix(p.path, "/")+"/"))
}

func of(m *mountinfo.Info) mountPlace { return mountPlace{[2]int{m.Major, m.Minor}, m.Root} }

// mounts compares what is mounted in a namespace.
func (k *check) mounts(v view) error {
	has := v.mounts
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
		if k.wants(m) || k.anew(m, host) || slices.ContainsFunc(sources, func(s mountPlace) bool { return s.holds(of(m)) }) || k.device(v.root, m) {
			continue
		}
		k.differ(Mounts, "a mount of %s (%s, %s) at %s", m.Source, m.FSType, m.Root, m.Mountpoint)
	}
	for _, m := range k.Spec.Mounts {
		top := slices.IndexFunc(has, func(h *mountinfo.Info) bool { return h.Mountpoint == path.Clean(m.Destination) })
		if top < 0 || m.Type == "cgroup" && has[top].FSType == "tmpfs" {
			continue // on cgroup v1, where runc leaves the tmpfs around the hierarchies writable in a pod
		}
		if trust.IsReadonlyMount(m.Options) && !isReadonly(has[top]) {
			k.differ(Mounts, "%s writable, which the specification has read-only", m.Destination)
		}
		k.flags(v.pid, m, has[top])
	}
	root := slices.IndexFunc(has, func(h *mountinfo.Info) bool { return h.Mountpoint == "/" })
	if k.Spec.Root != nil && k.Spec.Root.Readonly && root >= 0 && !isReadonly(has[root]) {
		k.differ(Mounts, "its root file system writable, which the specification has read-only")
	}
	if k.capabilities&sysAdmin != 0 {
		return nil // it may mount and unmount these itself
	}
	if procs > 1 || procs == 1 && slices.ContainsFunc(k.Spec.Mounts, func(m specs.Mount) bool { return m.Type == "proc" }) {
		k.differ(Privileges, "a further mount of proc")
	}
	return k.masks(v)
}

// mountFlags are those by which a mount gives less, with what mount_setattr(2) calls them.
var mountFlags = map[string]uint64{"nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC}

// flags notes which flags a mount lacks that the specification has. CRIU mounts with the flags of the snapshot's container, whose specification may have been another.
func (k *check) flags(pid int, wanted specs.Mount, has *mountinfo.Info) {
	if k.capabilities&sysAdmin != 0 {
		return
	}
	u := uncovered{pid: pid, path: has.Mountpoint}
	for flag, attribute := range mountFlags {
		if lacks(wanted, flag) && !slices.Contains(strings.Split(has.Options, ","), flag) {
			u.flags |= attribute
		}
	}
	if u.flags != 0 {
		k.uncovered = append(k.uncovered, u)
	}
}

// lacks reports whether a mount of the specification takes away what a flag names: its last option about that does. runc leaves hierarchies of cgroup v1 as the host has them.
func lacks(m specs.Mount, flag string) (yes bool) {
	for _, o := range m.Options {
		switch o {
		case flag, "r" + flag:
			yes = true
		case strings.TrimPrefix(flag, "no"), "r" + strings.TrimPrefix(flag, "no"):
			yes = false
		}
	}
	return yes && m.Type != "cgroup"
}

// propagation refuses mounts that would show the container's mounts on the host, and slaves that are private in the specification. Other slaves are allowed, as runc makes them: they show
// what the host mounts later below a source that was granted, with the host's flags, even if the mount itself is read-only.
func (k *check) propagation(m *mountinfo.Info, host []*mountinfo.Info) {
	hosts := slices.ContainsFunc(host, func(h *mountinfo.Info) bool { return peerGroup(h) != "" && peerGroup(h) == peerGroup(m) })
	private := k.capabilities&sysAdmin == 0 && // else it may mount what it likes there itself
		slices.ContainsFunc(k.Spec.Mounts, func(s specs.Mount) bool {
			return path.Clean(s.Destination) == m.Mountpoint && IsPrivateMount(s.Options)
		})
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
func (k *check) sources(host []*mountinfo.Info) (sources []mountPlace, err error) {
	paths := []string{k.Rootfs}
	for _, m := range k.Spec.Mounts {
		if trust.IsBindMount(m) {
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
			case whole && (mountPlace{path: m.Mountpoint}).holds(mountPlace{path: found}) && !slices.ContainsFunc(host, func(o *mountinfo.Info) bool {
				return len(o.Mountpoint) > len(m.Mountpoint) && (mountPlace{path: o.Mountpoint}).holds(mountPlace{path: found})
			}):
				whole = false
				sources = append(sources, mountPlace{of(m).device, path.Join(m.Root, strings.TrimPrefix(found, strings.TrimSuffix(m.Mountpoint, "/")))})
			}
		}
	}
	return sources, nil
}

// wants reports whether the specification has a mount that is no bind mount. One of cgroups is several mounts, on cgroup v1: a tmpfs, and one for each hierarchy.
func (k *check) wants(m *mountinfo.Info) bool {
	return slices.ContainsFunc(k.Spec.Mounts, func(s specs.Mount) bool {
		at := path.Clean(s.Destination)
		switch {
		case trust.IsBindMount(s):
			return false
		case s.Type == "cgroup" && strings.HasPrefix(m.FSType, "cgroup"):
			return m.Mountpoint == at || strings.HasPrefix(m.Mountpoint, at+"/") && (isReadonly(m) || !trust.IsReadonlyMount(s.Options))
		case s.Type == "cgroup" && m.FSType == "tmpfs":
			return m.Mountpoint == at && isReadonly(m) // else it must be the container's own
		}
		return m.Mountpoint == at && s.Type == m.FSType
	})
}

// anew reports whether the kernel makes such a file system anew for a container, and this one was: the host does not have it, or it cannot be written to.
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

// device reports whether a mount is of a device that the container may have: runc mounts the host's, and hides files by /dev/null.
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

// mayHave reports whether a container may have a device.
func (k *check) mayHave(character bool, major, minor int64) bool {
	n := trust.DeviceNumber{Major: major, Minor: minor}
	return character && major == trust.TerminalMajor || trust.IsPlainDevice(character, n) ||
		slices.ContainsFunc(k.Spec.Linux.Devices, func(d specs.LinuxDevice) bool { return trust.IsDeviceNumber(d, character, n) })
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

// IsPrivateMount reports whether runc takes a mount with such options out of the propagation of its source. Source: runc, libcontainer/specconv, initMaps; mount(2).
func IsPrivateMount(options []string) bool {
	return slices.ContainsFunc(options, func(o string) bool {
		return slices.Contains([]string{"private", "rprivate", "unbindable", "runbindable"}, o)
	})
}
