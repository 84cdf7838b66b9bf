// Package plain knows what every container has, and how runc reads the options of mounts. The review of a snapshot goes by it, the comparison of what was restored, and the making of device nodes.
package plain

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Number is that of a device.
type Number struct{ Major, Minor int64 }

// Devices are the character devices of every container, by their paths. Source: OCI runtime specification, config-linux, default devices.
var Devices = map[string]Number{
	"/dev/null": {1, 3}, "/dev/zero": {1, 5}, "/dev/full": {1, 7}, "/dev/random": {1, 8}, "/dev/urandom": {1, 9},
	"/dev/tty": {5, 0}, "/dev/console": {5, 1}, "/dev/ptmx": {5, 2},
}

// Terminals is the major number of /dev/pts/*, of which a container has its own.
const Terminals = 136

// IsDevice reports whether every container has a device. Terminals are not among them.
func IsDevice(character bool, n Number) bool {
	if character {
		for _, d := range Devices {
			if d == n {
				return true
			}
		}
	}
	return false
}

// Is reports whether a device of a specification is one of this kind and number. Source: OCI runtime specification, config-linux, devices.
func Is(d specs.LinuxDevice, character bool, n Number) bool {
	return (d.Type == "c" || d.Type == "u") == character && d.Major == n.Major && d.Minor == n.Minor
}

// HostFiles are files of /proc that each host has, that let a container's root reach the host, and that every container has masked or read-only.
var HostFiles = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/kcore", "/proc/keys", "/proc/timer_list"}

// IsReadonly reports whether runc mounts read-only with such options: the last one that says so or the contrary holds, and the recursive ones hold for what is below as well.
// Source: runc, libcontainer/specconv, parseMountOptions.
func IsReadonly(options []string) (yes bool) {
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

// IsBind reports whether runc takes a mount for a bind mount.
func IsBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}
