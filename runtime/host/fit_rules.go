package host

import (
	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/record"
)

// mandatory are the rules that cannot be overridden: nothing could come of it.
var mandatory = map[string]bool{
	"snapshot-version": true, "snapshot-spec": true, "os": true, "architecture": true, "page-size": true, "criu-missing": true,
	"gpu-library": true, "gpu-keeper": true, "gpu-missing": true, "gpu-driver": true, "gpu-count": true, "gpu-architecture": true, "gpu-memory": true, "gpu-libraries": true,
}

// FitRules is the table.
func FitRules() []FitRule {
	return []FitRule{
		{"snapshot-version", true, "this version of cryo does not know what the snapshot says", snapshotVersion},
		{"snapshot-spec", true, "without a runtime specification there is no container", snapshotSpec},
		{"os", true, "processes speak to another kernel", operatingSystem},
		{"architecture", true, "processes are of another instruction set", architecture},
		{"page-size", true, "memory is mapped in pages of another size", pageSize},
		{"cpu-features", true, "libraries have chosen code by the old processor's features; it ends with SIGILL", cpuFeatures},
		{"xsave-size", true, "libraries have sized buffers by the old processor's register state; a larger one overruns them", compareXSave},
		{"criu-missing", true, "CRIU restores the processes", criuMissing},
		{"criu-version", true, "older CRIU does not know what newer CRIU writes", criuVersion},
		{"cgroup-version", true, "CRIU mounts and fills the hierarchies that the snapshot names; the other version has none of them", cgroupVersion},
		{"kernel-features", true, "CRIU cannot restore what the kernel does not have", kernelFeatures},
		{"network-lock", true, "CRIU keeps the network of a restored container still by the means by which it did so for the dump", networkLock},
		{"kernel-version", false, "processes may have found system calls that this kernel does not have", kernelVersion},
		{"lsm", false, "processes run without the confinement they had", securityModule},
		{"lsm-label", true, "processes were confined by a label that this host cannot apply", securityLabel},
		{"bind-mounts", true, "runc refuses a container whose mounts lack their sources", bindMounts},
		{"devices", true, "runc binds devices from the host on restore", devices},
		{"runc-missing", false, "containerd starts runc, which may be in a PATH of its own", runcMissing},
		{"seccomp", true, "runc without seccomp refuses a container with a seccomp profile", seccomp},
		{"gpu-library", true, "processes go on in the code of a library that they have mapped", gpuLibrary},
		{"gpu-keeper", true, "cryo-gpu-keeper speaks to the driver, which has the device memory", gpuKeeper},
		{"gpu-missing", true, "processes go on only with GPUs", gpuMissing},
		{record.DriverRule, true, "one branch of the driver need not load what another has saved", compared(record.DriverRule)},
		{"gpu-driver-version", false, "processes have libraries of one version of the driver, which may not work with another", gpuDriverVersion},
		{"gpu-count", true, "each GPU of the snapshot becomes another one", gpuCount},
		{record.ArchitectureRule, true, "code on the GPU is of another architecture", compared(record.ArchitectureRule)},
		{record.MemoryRule, true, "the driver refuses to load what does not fit", compared(record.MemoryRule)},
		{"gpu-libraries", true, "CRIU refuses mounts that have no source", gpuLibraries},
		{"tcp-established", false, "connections go on only where the container has the same address and the peer has not given up", tcpEstablished},
	}
}

// one makes a mismatch.
func one(problem, hint string) []mismatch { return []mismatch{{problem, hint}} }

// elsewhere is the hint where only another host helps.
const elsewhere = "restore on a host like the one the snapshot was taken on: cryo inspect shows it"

func snapshotVersion(s comparison, _ FitTarget) []mismatch {
	if s.Version == image.ConfigVersion {
		return nil
	}
	return one(sprintf("the snapshot's config is of version %d, this cryo reads %d", s.Version, image.ConfigVersion), "use the version of cryo that the snapshot was made with")
}

func snapshotSpec(s comparison, _ FitTarget) []mismatch {
	if s.spec != nil && s.spec.Linux != nil && s.spec.Process != nil {
		return nil
	}
	return one("the snapshot has no runtime specification of a Linux container", "take the snapshot again")
}

func operatingSystem(s comparison, t FitTarget) []mismatch {
	if s.Host.OS == t.OS {
		return nil
	}
	return one(sprintf("the snapshot is of %s, this host is %s", s.Host.OS, t.OS), elsewhere)
}

func architecture(s comparison, t FitTarget) []mismatch {
	if s.Host.Architecture == t.Architecture {
		return nil
	}
	return one(sprintf("the snapshot is of %s, this host is %s", s.Host.Architecture, t.Architecture), elsewhere)
}

func pageSize(s comparison, t FitTarget) []mismatch {
	if s.Host.PageSize == t.PageSize {
		return nil
	}
	return one(sprintf("the snapshot has pages of %d bytes, this host of %d", s.Host.PageSize, t.PageSize), elsewhere)
}

// cgroupVersion: with controllers of version 1 in the images, CRIU mounts each by name, which a host of version 2
// refuses (the controllers are taken), and the other way round the unified hierarchy has no controllers to set. runc
// besides treats mounts of cgroup as external on one version only. Source: CRIU criu/cgroup.c, runc criu_linux.go.
func cgroupVersion(s comparison, t FitTarget) []mismatch {
	if s.Host.CgroupVersion == t.CgroupVersion {
		return nil
	}
	return one(sprintf("the snapshot is of cgroup version %d, this host has %d", s.Host.CgroupVersion, t.CgroupVersion),
		sprintf("start a host with cgroup version %d (kernel parameter systemd.unified_cgroup_hierarchy=%d)", s.Host.CgroupVersion, s.Host.CgroupVersion-1))
}

func tcpEstablished(s comparison, _ FitTarget) []mismatch {
	if !s.Process.TCPEstablished {
		return nil
	}
	return one("the snapshot may hold established TCP connections", "give the container the address it had; otherwise restore fails or peers see a reset")
}
