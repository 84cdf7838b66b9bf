package grant

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

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
		switch {
		case own && has == host && !shared:
			k.differ(Namespaces, "a process in the host's %s namespace", n.kind)
		case !own && has != host:
			k.differ(Namespaces, "a process in a %s namespace, which the specification does not have", n.kind)
		}
	}
	return mounts, nil
}

// wanted tells whether the specification has a namespace of a kind, which has a name of the kernel's, and whether that is the host's, by its path.
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
