package trust

import (
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts: file systems that the kernel makes anew for a container are free, if they lie where their masks apply.
func (r *reviewer) mounts(spec *specs.Spec, p Policy) {
	for _, m := range spec.Mounts {
		if ordinary(m) || slices.Contains(p.Mounts, m.Destination) {
			continue
		}
		r.ask(Mounts, "%s of %s at %s", describe(m), m.Source, m.Destination)
	}
}

func ordinary(m specs.Mount) bool {
	if bind(m) {
		return false
	}
	at := path.Clean(m.Destination)
	readonly := readonly(m.Options)
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

// readonly tells whether runc mounts read-only with such options: the last one that says so or the contrary holds, and the recursive ones hold
// for what is below as well. Source: runc, libcontainer/specconv, parseMountOptions.
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

// bind tells whether runc takes a mount for a bind mount.
func bind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

func describe(m specs.Mount) string {
	switch {
	case bind(m) && readonly(m.Options):
		return "a read-only bind mount"
	case bind(m):
		return "a bind mount"
	case slices.Contains([]string{"proc", "sysfs", "cgroup", "cgroup2"}, m.Type):
		return "an unusual mount (" + m.Type + ")"
	}
	return "a mount (" + m.Type + ")"
}
