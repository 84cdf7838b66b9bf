package trust

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// maskedPaths and readonlyPaths are what all versions of containerd and Docker hide from a container; newer ones hide
// more. Source: containerd's pkg/oci, defaultLinuxMaskedPaths and populateDefaultUnixSpec.
var (
	maskedPaths   = []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// ipcSysctls are those of an IPC namespace. Source: runc's libcontainer/configs/validate.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced",
}

func (r *reviewer) privileges(spec *specs.Spec) {
	l := spec.Linux
	if open := without(maskedPaths, l.MaskedPaths); len(open) > 0 {
		r.ask(Privileges, "unmasked %s", strings.Join(open, ", "))
	}
	if open := without(readonlyPaths, append(slices.Clone(l.ReadonlyPaths), l.MaskedPaths...)); len(open) > 0 {
		r.ask(Privileges, "writable %s", strings.Join(open, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(l.Sysctl)) {
		if !namespaced(spec, name) {
			r.ask(Privileges, "sysctl %s", name)
		}
	}
	switch l.RootfsPropagation {
	case "", "private", "rprivate", "slave", "rslave":
	default:
		r.ask(Privileges, "mount propagation %s of the rootfs", l.RootfsPropagation)
	}
	if l.IntelRdt != nil {
		r.ask(Privileges, "a class of the host's cache allocation (resctrl)")
	}
	if p := spec.Process; p != nil {
		if p.OOMScoreAdj != nil && *p.OOMScoreAdj < 0 {
			r.ask(Privileges, "protection from the OOM killer (score %d)", *p.OOMScoreAdj)
		}
		if p.Scheduler != nil && slices.Contains([]specs.LinuxSchedulerPolicy{specs.SchedFIFO, specs.SchedRR, specs.SchedDeadline}, p.Scheduler.Policy) {
			r.ask(Privileges, "real-time scheduling (%s)", p.Scheduler.Policy)
		}
		if p.ApparmorProfile == "unconfined" {
			r.ask(Privileges, "no AppArmor profile (unconfined)")
		}
		if !containerLabel.MatchString(p.SelinuxLabel) {
			r.ask(Privileges, "the SELinux label %s", p.SelinuxLabel)
		}
	}
}

// containerLabel is an SELinux label of a type that is for containers, or none. Source: container-selinux, container_contexts.
var containerLabel = regexp.MustCompile(`^$|^[a-z_]+:[a-z_]+:(container_t|container_init_t|container_kvm_t|svirt_lxc_net_t)(:|$)`)

// without gives those of want that have does not hold.
func without(want, have []string) []string {
	clean := map[string]bool{}
	for _, p := range have {
		clean[path.Clean(p)] = true
	}
	return slices.DeleteFunc(slices.Clone(want), func(p string) bool { return clean[p] })
}

// namespaced tells whether a sysctl is of a namespace that the container has for itself.
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
