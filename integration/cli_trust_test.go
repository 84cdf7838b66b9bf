package integration

import (
	"os"
	"path/filepath"
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

// TestCLITrustDropped has a snapshot with what none gets, whoever allows it: hooks, a root elsewhere, the cgroup of
// another. The container runs without.
func TestCLITrustDropped(t *testing.T) {
	_, b := pair(t)
	guarded(t, b)
	f := freeze(t, []string{"count"})
	forger, ref, id := newForger(t, f), "cryo.test/trust:1", name(t)
	mark := filepath.Join(b.Dir, "home", id)
	forger.forge(t, b, ref, func(c *image.Config, s *specs.Spec) {
		hook := specs.Hook{Path: "/usr/bin/touch", Args: []string{"touch", mark}}
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{hook}, Poststart: []specs.Hook{hook}, Poststop: []specs.Hook{hook}}
		s.Annotations = map[string]string{"org.criu.config": "/etc/passwd", "org.systemd.property.ExecStart": "'/bin/sh'", "cdi.k8s.io/x": "nvidia.com/gpu=all"}
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/run/evil.sock"}
		s.Root.Path = "/"
		s.Linux.CgroupsPath = "/../../evil"
		c.Container.ID, c.Container.Runtime, c.Container.Snapshotter = "../evil", "io.containerd.evil.v1", "evil"
		c.Container.Labels = map[string]string{"containerd.io/gc.root": "1", "plain": "kept"}
	})
	refused(t, b, codeUsage, "../evil", "restore", ref)
	cleanup(t, b, id)
	pullBase(t, b)
	r := must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "all"))
	for _, dropped := range []string{"3 hooks", "org.criu.config", "org.systemd.property.ExecStart", "cdi.k8s.io/x", "the seccomp listener"} {
		if !strings.Contains(r.Stderr, dropped) {
			t.Errorf("no word of %s:\n%s", dropped, r.Stderr)
		}
	}
	goneOn(t, f.before, await(t, b, id))
	remove(t.Context(), b, id)
	if _, err := os.Stat(mark); err == nil {
		t.Error("a hook has run")
	}
}

// TestCLITrustImages has processes with capabilities and mounts of which the specification no longer says anything.
func TestCLITrustImages(t *testing.T) {
	_, b := pair(t)
	for _, test := range []struct {
		name, rule, words string
		run               []string // flags of ctr run
		change            func(*specs.Spec)
	}{
		{"capability", "credentials", "CAP_SYS_ADMIN", []string{"--cap-add", "CAP_SYS_ADMIN"}, func(s *specs.Spec) {
			c := s.Process.Capabilities
			for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Permitted} {
				*set = slices.DeleteFunc(*set, func(name string) bool { return name == "CAP_SYS_ADMIN" })
			}
		}},
		{"bind mount", "mounts", "/host", []string{"--mount", "type=bind,src=/etc,dst=/host,options=rbind:ro"}, func(s *specs.Spec) {
			s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/host" })
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := freezeImage(t, shared.image, test.run, []string{"count"})
			ref := "cryo.test/images:1"
			newForger(t, f).forge(t, b, ref, func(_ *image.Config, s *specs.Spec) { test.change(s) })
			pullBase(t, b)
			denied(t, b, nil, codeDenied, test.rule, test.words, "restore", ref, "--name", "asking")
		})
	}
}
