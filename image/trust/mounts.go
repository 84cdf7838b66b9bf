package trust

import (
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts: file systems that the kernel makes anew for a container are free, if they lie where their masks apply.
func (r *reviewer) mounts(spec *specs.Spec, p Policy) {
	for _, m := range spec.Mounts {
		if len(m.UIDMappings)+len(m.GIDMappings) > 0 || slices.Contains(m.Options, "idmap") || slices.Contains(m.Options, "ridmap") {
			r.ask(Privileges, "other owners of the files at %s", m.Destination)
		}
		if ordinary(m) || slices.Contains(p.Mounts, m.Destination) {
			continue
		}
		r.ask(Mounts, "%s of %s at %s", describe(m), m.Source, m.Destination)
	}
}

func ordinary(m specs.Mount) bool {
	if IsBindMount(m) {
		return false
	}
	at := path.Clean(m.Destination)
	readonly := IsReadonlyMount(m.Options)
	switch m.Type {
	case "tmpfs", "devpts", "mqueue":
		return true
	case "proc":
		return at == "/proc"
	case "sysfs":
		return at == "/sys" && readonly
	case "cgroup", "cgroup2":
		return at == "/sys/fs/cgroup" && readonly
	}
	return false
}

func describe(m specs.Mount) string {
	switch {
	case IsBindMount(m) && IsReadonlyMount(m.Options):
		return "a read-only bind mount"
	case IsBindMount(m):
		return "a bind mount"
	case slices.Contains([]string{"proc", "sysfs", "cgroup", "cgroup2"}, m.Type):
		return "an unusual mount (" + m.Type + ")"
	}
	return "a mount (" + m.Type + ")"
}
