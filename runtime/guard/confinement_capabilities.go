package guard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// needed are the capabilities that CRIU needs for a restore, with what it needs them for. It keeps these, and those of the specification, which its processes get from it. All others
// are taken from it before it reads an image.
var needed = []struct {
	capability int
	reason     string
}{
	{unix.CAP_CHOWN, "deleted files, sockets and terminals get their owners"},
	{unix.CAP_DAC_OVERRIDE, "it opens files of all users"},
	{unix.CAP_FOWNER, "it sets modes and times of files of all users"},
	{unix.CAP_FSETID, "deleted files keep the modes setuid and setgid"},
	{unix.CAP_KILL, "it stops and ends processes of all users"},
	{unix.CAP_SETGID, "processes get their groups"},
	{unix.CAP_SETUID, "processes get their users"},
	{unix.CAP_SETPCAP, "processes get their capabilities"},
	{unix.CAP_NET_BIND_SERVICE, "sockets get ports below 1024"},
	{unix.CAP_NET_ADMIN, "connections are repaired, and let go by nft or iptables"},
	{unix.CAP_NET_RAW, "iptables, which lets connections go"},
	{unix.CAP_IPC_LOCK, "memory is locked"},
	{unix.CAP_IPC_OWNER, "System V objects of all users are filled"},
	{unix.CAP_SYS_CHROOT, "it enters mount namespaces and root directories"},
	{unix.CAP_SYS_PTRACE, "it lets stopped processes of all users go"},
	{unix.CAP_SYS_ADMIN, "it makes namespaces and mounts, and sets the host's name"},
	{unix.CAP_SYS_NICE, "processes get their scheduling"},
	{unix.CAP_SYS_RESOURCE, "processes get their limits, and the addresses of their parts"},
	{unix.CAP_SYS_TIME, "a time namespace gets its clocks"},
	{unix.CAP_AUDIT_CONTROL, "processes get no login id where the host's service has one"},
	{unix.CAP_SETFCAP, "files in memory get their capabilities, and user namespaces their users"},
	{unix.CAP_CHECKPOINT_RESTORE, "processes get their ids"},
}

// bound takes from this thread, and so from CRIU and what it starts, the capabilities that it needs not and the specification does not have. Nothing gives them back.
func bound(capabilities *specs.LinuxCapabilities) error {
	keep := map[int]bool{}
	for _, n := range needed {
		keep[n.capability] = true
	}
	if c := capabilities; c != nil {
		known := cap.Known()
		for _, name := range slices.Concat(c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient) {
			if i := slices.Index(known, name); i >= 0 {
				keep[i] = true
			}
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("look at own capabilities: %w", err)
	}
	for c := range 64 {
		if keep[c] {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // the kernel has no more
			break
		}
		if err != nil {
			return fmt.Errorf("give up capability %d: %w", c, err)
		}
		bit := uint32(1) << (c % 32)
		for _, set := range []*uint32{&sets[c/32].Effective, &sets[c/32].Permitted, &sets[c/32].Inheritable} {
			*set &^= bit
		}
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}
