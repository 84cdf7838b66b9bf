package host

import (
	"github.com/cryo-project/cryo/image/trust"
	"path/filepath"
)

// securityModule and securityLabel: CRIU writes the label of every process back on restore, which only the same module
// can take. A container whose specification names no label runs under whatever the module's default is.
func securityModule(s comparison, t FitTarget) []mismatch {
	if s.Host.LSM == t.LSM || s.Host.LSM == "" {
		return nil
	}
	return one(sprintf("the snapshot's host had %s, this one has %s", s.Host.LSM, orNone(t.LSM)), "")
}

func securityLabel(s comparison, t FitTarget) []mismatch {
	if s.spec == nil || s.spec.Process == nil {
		return nil
	}
	var found []mismatch
	if p := s.spec.Process.ApparmorProfile; p != "" && p != "unconfined" && t.LSM != "apparmor" {
		found = append(found, mismatch{sprintf("processes are confined by the AppArmor profile %q, this host has %s", p, orNone(t.LSM)),
			"start the kernel with apparmor=1, or override with --force lsm-label"})
	}
	if l := s.spec.Process.SelinuxLabel; l != "" && t.LSM != "selinux" {
		found = append(found, mismatch{sprintf("processes have the SELinux label %q, this host has %s", l, orNone(t.LSM)),
			"start the kernel with selinux=1, or override with --force lsm-label"})
	}
	return found
}

func orNone(lsm string) string {
	if lsm == "" {
		return "no security module"
	}
	return lsm
}

func bindMounts(s comparison, t FitTarget) []mismatch {
	if s.spec == nil || t.PathExists == nil {
		return nil
	}
	var found []mismatch
	for _, m := range s.spec.Mounts {
		if !trust.IsBindMount(m) || filepath.IsAbs(m.Source) && t.PathExists(m.Source) {
			continue
		}
		found = append(found, mismatch{sprintf("%s is a bind mount of %s, which is not on this host", m.Destination, m.Source),
			sprintf("make %s available, or give another: --mount type=bind,src=PATH,dst=%s", m.Source, m.Destination)})
	}
	return found
}

// devices: runc binds each device from the same path of the host on restore.
func devices(s comparison, t FitTarget) []mismatch {
	if s.spec == nil || s.spec.Linux == nil || t.PathExists == nil {
		return nil
	}
	var found []mismatch
	for _, d := range s.spec.Linux.Devices {
		if !t.PathExists(d.Path) {
			found = append(found, mismatch{sprintf("the device %s is not on this host", d.Path), sprintf("load the driver that provides %s", d.Path)})
		}
	}
	return found
}

func seccomp(s comparison, t FitTarget) []mismatch {
	if s.spec == nil || s.spec.Linux == nil || s.spec.Linux.Seccomp == nil || t.Seccomp || t.Runc == "" {
		return nil
	}
	return one("the container has a seccomp profile, and runc "+t.Runc+" is built without seccomp", "install a runc with seccomp: runc --version names libseccomp")
}
