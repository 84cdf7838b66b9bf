package integration

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
)

// TestCLIFit has snapshots that do not fit the host: restore and "inspect --check" name the rule, and nothing is changed.
func TestCLIFit(t *testing.T) {
	_, b := pair(t)
	f := freeze(t, []string{"count"})
	forger, ref := newForger(t, f), "cryo.test/fit:1"
	for _, test := range []struct {
		rule   string
		change func(*image.Config, *specs.Spec)
	}{
		{"os", func(c *image.Config, _ *specs.Spec) { c.Host.OS = "plan9" }},
		{"architecture", func(c *image.Config, _ *specs.Spec) { c.Host.Architecture = "s390x" }},
		{"page-size", func(c *image.Config, _ *specs.Spec) { c.Host.PageSize *= 16 }},
		// A processor that has all of these is not made.
		{"cpu-features", func(c *image.Config, _ *specs.Spec) {
			c.Host.CPUFeatures = append(c.Host.CPUFeatures, "fma4", "amx_complex")
		}},
		{"xsave-size", func(c *image.Config, _ *specs.Spec) { c.Host.XSaveSize += 1 << 20 }},
		{"criu-version", func(c *image.Config, _ *specs.Spec) { c.Host.CRIU = "99.1" }},
		{"cgroup-version", func(c *image.Config, _ *specs.Spec) { c.Host.CgroupVersion = 3 - c.Host.CgroupVersion }},
		{"kernel-features", func(c *image.Config, _ *specs.Spec) { c.Host.Features = append(c.Host.Features, "time_travel") }},
		{"lsm-label", func(_ *image.Config, s *specs.Spec) { s.Process.SelinuxLabel = "system_u:system_r:container_t:s0" }},
		{"bind-mounts", func(_ *image.Config, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: "/nowhere/data", Destination: "/data", Options: []string{"rbind"}})
		}},
		{"devices", func(_ *image.Config, s *specs.Spec) {
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/nowhere", Type: "c", Major: 240, Minor: 1})
		}},
	} {
		t.Run(test.rule, func(t *testing.T) {
			forger.forge(t, b, ref, test.change)
			refused(t, b, codeMisfit, "\n  "+test.rule+": ", "restore", ref, "--name", "misfit")
			r := b.Cryo(t.Context(), "inspect", ref, "--check")
			if r.Code != codeMisfit || !strings.Contains(r.Stdout, "fatal  "+test.rule+" ") {
				t.Errorf("inspect --check: exit code %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
		})
	}
}
