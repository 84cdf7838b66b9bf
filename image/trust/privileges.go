package trust

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// maskedPaths and readonlyPaths are what all versions of containerd and Docker hide from a container, and newerMaskedPaths what newer ones do, but for files of single CPUs, which are
// others on each host. Source: containerd's pkg/oci, defaultLinuxMaskedPaths and populateDefaultUnixSpec.
var (
	maskedPaths      = []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"}
	newerMaskedPaths = []string{"/proc/asound", "/proc/interrupts", "/proc/timer_stats", "/sys/devices/virtual/powercap"}
	readonlyPaths    = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// ipcSysctls are those of an IPC namespace. Source: runc's libcontainer/configs/validate.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced",
}

func (r *reviewer) masks(spec *specs.Spec) {
	l := spec.Linux
	if open := without(maskedPaths, l.MaskedPaths); len(open) > 0 {
		r.ask(Privileges, "unmasked %s", strings.Join(open, ", "))
	}
	if open := without(readonlyPaths, append(slices.Clone(l.ReadonlyPaths), l.MaskedPaths...)); len(open) > 0 {
		r.ask(Privileges, "writable %s", strings.Join(open, ", "))
	}
}

// mask has a specification hide what containerd hides by default, where it hides what older versions do. The shim covers what it has not hidden so far (package guard).
func mask(spec *specs.Spec) {
	if l := spec.Linux; l != nil && len(without(maskedPaths, l.MaskedPaths)) == 0 {
		l.MaskedPaths = append(l.MaskedPaths, without(newerMaskedPaths, l.MaskedPaths)...)
	}
}

func (r *reviewer) sysctls(spec *specs.Spec) {
	for _, name := range slices.Sorted(maps.Keys(spec.Linux.Sysctl)) {
		if !namespaced(spec, name) {
			r.ask(Privileges, "sysctl %s", name)
		}
	}
}

// propagation asks for mounts that show the host what the container mounts.
func (r *reviewer) propagation(spec *specs.Spec) {
	switch p := spec.Linux.RootfsPropagation; p {
	case "", "private", "rprivate", "slave", "rslave":
	default:
		r.ask(Privileges, "mount propagation %s of the rootfs", p)
	}
	for _, m := range spec.Mounts {
		if IsBindMount(m) && (slices.Contains(m.Options, "shared") || slices.Contains(m.Options, "rshared")) {
			r.ask(Privileges, "mount propagation of %s", m.Destination)
		}
	}
}

// appArmorProfiles are those that clients of containerd give to containers. Sources: containerd, internal/cri; nerdctl, pkg/defaults; Docker, profiles/apparmor.
var appArmorProfiles = []string{"cri-containerd.apparmor.d", "nerdctl-default", "docker-default"}

// labels reviews by what security modules go. A profile of another name may be one that confines nothing, of which distributions have many.
func (r *reviewer) labels(spec *specs.Spec, p Policy) {
	if !containerFiles.MatchString(spec.Linux.MountLabel) {
		r.ask(Privileges, "the SELinux label %s of its files", brief(spec.Linux.MountLabel))
	}
	var process specs.Process
	if spec.Process != nil {
		process = *spec.Process
	}
	switch profile := process.ApparmorProfile; {
	case slices.Contains(appArmorProfiles, profile):
	case profile != "":
		r.ask(Privileges, "another AppArmor profile than those for containers (%s)", OneLine(profile))
	case p.AppArmor:
		r.ask(Privileges, "no AppArmor profile, which containers have on this host")
	}
	if !containerLabel.MatchString(process.SelinuxLabel) {
		r.ask(Privileges, "the SELinux label %s", process.SelinuxLabel)
	}
}

// HasAppArmor reports whether clients of containerd confine containers by AppArmor on this host. profiles is the kernel's list of loaded profiles, /sys/kernel/security/apparmor/profiles.
func HasAppArmor(profiles string) bool {
	for line := range strings.Lines(profiles) {
		if name, _, ok := strings.Cut(line, " ("); ok && slices.Contains(appArmorProfiles, name) {
			return true
		}
	}
	return false
}

// containerLabel is an SELinux label of a type that is for containers, or none, and containerFiles one of their files. Source: container-selinux, container_contexts.
var (
	containerLabel = NewPattern(`^$|^[a-z_]+:[a-z_]+:(container_t|container_init_t|container_kvm_t|svirt_lxc_net_t)(:|$)`)
	containerFiles = NewPattern(`^$|^[a-z_]+:[a-z_]+:(container_file_t|container_ro_file_t|svirt_sandbox_file_t)(:|$)`)
)

// without returns those of want that have does not hold.
func without(want, have []string) []string {
	clean := map[string]bool{}
	for _, p := range have {
		clean[path.Clean(p)] = true
	}
	return slices.DeleteFunc(slices.Clone(want), func(p string) bool { return clean[p] })
}

// namespaced reports whether a sysctl is of a namespace that the container has for itself.
func namespaced(spec *specs.Spec, name string) bool {
	name = strings.ReplaceAll(name, "/", ".")
	switch {
	case strings.Contains(name, ".."): // it leads elsewhere
		return false
	case strings.HasPrefix(name, "net."):
		return own(spec, specs.NetworkNamespace)
	case strings.HasPrefix(name, "fs.mqueue."), slices.Contains(ipcSysctls, name):
		return own(spec, specs.IPCNamespace)
	case name == "kernel.domainname":
		return own(spec, specs.UTSNamespace)
	}
	return false
}
