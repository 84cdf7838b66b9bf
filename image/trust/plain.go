package trust

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// DeviceNumber is that of a device.
type DeviceNumber struct{ Major, Minor int64 }

// PlainDevices are the character devices of every container, by their paths. Source: OCI runtime specification, config-linux, default devices.
var PlainDevices = map[string]DeviceNumber{
	"/dev/null": {1, 3}, "/dev/zero": {1, 5}, "/dev/full": {1, 7}, "/dev/random": {1, 8}, "/dev/urandom": {1, 9},
	"/dev/tty": {5, 0}, "/dev/console": {5, 1}, "/dev/ptmx": {5, 2},
}

// TerminalMajor is the major number of /dev/pts/*, of which a container has its own.
const TerminalMajor = 136

// IsPlainDevice reports whether every container has a device. Terminals are not among them.
func IsPlainDevice(character bool, n DeviceNumber) bool {
	if character {
		for _, d := range PlainDevices {
			if d == n {
				return true
			}
		}
	}
	return false
}

// IsDeviceNumber reports whether a device of a specification is one of this kind and number. Source: OCI runtime specification, config-linux, devices.
func IsDeviceNumber(d specs.LinuxDevice, character bool, n DeviceNumber) bool {
	return (d.Type == "c" || d.Type == "u") == character && d.Major == n.Major && d.Minor == n.Minor
}

// HostProcFiles are files of /proc that each host has, that let a container's root reach the host, and that every container has masked or read-only.
var HostProcFiles = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/kcore", "/proc/keys", "/proc/timer_list"}

// IsReadonlyMount reports whether runc mounts read-only with such options: the last one that says so or the contrary holds, and the recursive ones hold for what is below as well.
// Source: runc, libcontainer/specconv, parseMountOptions.
func IsReadonlyMount(options []string) (yes bool) {
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

// IsBindMount reports whether runc takes a mount for a bind mount.
func IsBindMount(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}
