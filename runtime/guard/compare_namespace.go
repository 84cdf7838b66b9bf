package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// kinds are the namespaces that are compared, with the kernel's names. CRIU restores into a time namespace in any case.
var kinds = []struct {
	kind specs.LinuxNamespaceType
	name string
}{
	{specs.PIDNamespace, "pid"}, {specs.IPCNamespace, "ipc"}, {specs.UTSNamespace, "uts"}, {specs.MountNamespace, "mnt"},
	{specs.NetworkNamespace, "net"}, {specs.UserNamespace, "user"}, {specs.CgroupNamespace, "cgroup"},
}

// namespaces compares in which namespaces a process is, and gives that of mounts.
func (k *check) namespaces(pid int) (mounts string, err error) {
	for _, n := range kinds {
		has, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, n.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has none of this kind
		}
		if err != nil {
			return "", fmt.Errorf("look at the namespaces of a restored process: %w", err)
		}
		host, err := os.Readlink("/proc/self/ns/" + n.name)
		if err != nil {
			return "", fmt.Errorf("look at own namespaces: %w", err)
		}
		if n.kind == specs.MountNamespace {
			mounts = has
		}
		own, shared := k.wanted(n.kind, n.name)
		if n.kind == specs.UserNamespace && own && !shared && has != host {
			if err := k.mappings(pid); err != nil {
				return "", err
			}
		}
		switch {
		case own && has == host && !shared:
			k.differ(Namespaces, "a process in the host's %s namespace", n.kind)
		case !own && has != host:
			k.differ(Namespaces, "a process in a %s namespace, which the specification does not have", n.kind)
		}
	}
	return mounts, nil
}

// mappings compares which users and groups of this host those of a process's user namespace are, if the specification maps them. Source: user_namespaces(7).
func (k *check) mappings(pid int) error {
	for file, wanted := range map[string][]specs.LinuxIDMapping{"uid_map": k.Spec.Linux.UIDMappings, "gid_map": k.Spec.Linux.GIDMappings} {
		if len(wanted) == 0 {
			continue // it joins one that was granted, by its path
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			return fmt.Errorf("look at the users of a restored process: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			var has specs.LinuxIDMapping
			if _, err := fmt.Sscan(line, &has.ContainerID, &has.HostID, &has.Size); err != nil || !slices.Contains(wanted, has) {
				k.differ(Namespaces, "users or groups of the host's that the specification does not map (%s: %s)", file, strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return nil
}

// wanted reports whether the specification has a namespace of a kind, which has a name of the kernel's, and whether that is the host's, by its path.
func (k *check) wanted(kind specs.LinuxNamespaceType, name string) (own, shared bool) {
	for _, n := range k.Spec.Linux.Namespaces {
		if n.Type != kind {
			continue
		}
		own = true
		if n.Path != "" {
			a, errA := os.Stat(n.Path)
			b, errB := os.Stat("/proc/self/ns/" + name)
			shared = errA == nil && errB == nil && os.SameFile(a, b)
		}
	}
	return own, shared
}
