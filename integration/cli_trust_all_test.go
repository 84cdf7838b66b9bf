package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
)

// TestCLITrust has snapshots that ask for more of the host than a container has: they are refused unless that is granted.
func TestCLITrust(t *testing.T) {
	_, b := pair(t)
	f := freeze(t, []string{"count"})
	forger, ref := newForger(t, f), "cryo.test/trust:1"
	one := int64(1)
	for _, test := range []struct {
		name, grant string
		change      func(*specs.Spec)
	}{
		{"bind mount", "mounts", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: "/etc", Destination: "/host", Options: []string{"rbind", "ro"}})
		}},
		{"bind mount by option", "mounts", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "tmpfs", Source: "/etc", Destination: "/host", Options: []string{"bind"}})
		}},
		{"writable sysfs", "mounts", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "sysfs", Source: "sysfs", Destination: "/host", Options: []string{"rw"}})
		}},
		{"capability", "capabilities", func(s *specs.Spec) {
			s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
		}},
		{"device", "devices", func(s *specs.Spec) {
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/kmsg", Type: "c", Major: 1, Minor: 11})
		}},
		{"device under another name", "devices", func(s *specs.Spec) {
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/null", Type: "c", Major: 1, Minor: 1})
		}},
		{"device rule", "devices", func(s *specs.Spec) {
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &one, Minor: &one, Access: "rw"})
		}},
		{"pid namespace of the host", "namespaces", func(s *specs.Spec) {
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace })
		}},
		{"network namespace of a path", "namespaces", func(s *specs.Spec) {
			for i := range s.Linux.Namespaces {
				if s.Linux.Namespaces[i].Type == specs.NetworkNamespace {
					s.Linux.Namespaces[i].Path = "/proc/1/ns/net"
				}
			}
		}},
		{"unmasked files", "privileges", func(s *specs.Spec) { s.Linux.MaskedPaths = nil }},
		{"writable kernel files", "privileges", func(s *specs.Spec) { s.Linux.ReadonlyPaths = nil }},
		{"sysctl", "privileges", func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"kernel.core_pattern": "|/bin/sh"} }},
		{"mount propagation", "privileges", func(s *specs.Spec) { s.Linux.RootfsPropagation = "rshared" }},
		{"18 bind of all", "mounts", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: "/", Destination: "/host", Options: []string{"rbind"}})
		}},
		{"19 all devices", "devices", func(s *specs.Spec) {
			s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		}},
		{"20 capability in odd spelling", "capabilities", func(s *specs.Spec) { s.Process.Capabilities.Effective = []string{"cap_sys_Module"} }},
		{"21 user namespace of a path", "namespaces", func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/1/ns/user"})
		}},
		{"24 sysctl that leads out", "privileges", func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"net/../kernel/core_pattern": "|/bin/sh"} }},
		{"25 real-time scheduling", "privileges", func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedFIFO, Priority: 50} }},
		{"25 OOM score", "privileges", func(s *specs.Spec) { score := -1000; s.Process.OOMScoreAdj = &score }},
		{"25 network device", "devices", func(s *specs.Spec) { s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"lo": {}} }},
		{"26 sysfs with ro and rw", "mounts", func(s *specs.Spec) {
			for i := range s.Mounts {
				if s.Mounts[i].Type == "sysfs" {
					s.Mounts[i].Options = []string{"ro", "rw"}
				}
			}
		}},
		{"27 no AppArmor", "privileges", func(s *specs.Spec) { s.Process.ApparmorProfile = "unconfined" }},
		{"another AppArmor profile", "privileges", func(s *specs.Spec) { s.Process.ApparmorProfile = "chrome" }},
		{"limit of real-time scheduling", "privileges", func(s *specs.Spec) {
			s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_RTPRIO", Hard: 99, Soft: 99})
		}},
		{"real-time scheduling of the cgroup", "privileges", func(s *specs.Spec) { s.Linux.Resources.CPU = &specs.LinuxCPU{RealtimeRuntime: &one} }},
		{"memory that others lack", "privileges", func(s *specs.Spec) { s.Linux.Resources.Unified = map[string]string{"memory.min": "max"} }},
		{"27 SELinux label", "privileges", func(s *specs.Spec) { s.Process.SelinuxLabel = "system_u:system_r:spc_t:s0" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			forger.forge(t, b, ref, func(_ *image.Config, s *specs.Spec) { test.change(s) })
			denied(t, b, nil, codeDenied, "specification", "\n  "+test.grant+": ", "restore", ref, "--name", "asking", "--force", "lsm-label")
			args := []string{"restore", ref, "--name", "asking", "--force", "lsm-label"} // the host may have no SELinux
			for _, other := range []string{"mounts", "devices", "capabilities", "namespaces", "privileges"} {
				if other != test.grant {
					args = append(args, "--allow", other)
				}
			}
			refusal(t, b.Cryo(t.Context(), args...), codeDenied, test.grant)
			if out := must(t, b.Cryo(t.Context(), "inspect", ref)).Stdout; !strings.Contains(out, "--allow "+test.grant) || !strings.Contains(out, "(rule specification)") {
				t.Errorf("inspect does not tell what the snapshot asks for:\n%s", out)
			}
		})
	}
}
