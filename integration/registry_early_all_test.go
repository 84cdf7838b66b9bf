package integration

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
)

// TestRegistryEarlyDies has the registry die while a container is dumped: the snapshot is whole, that is said, and the next push sends the rest.
func TestRegistryEarlyDies(t *testing.T) {
	for _, test := range []struct {
		name, words string
		flags       []string
	}{
		{"and the container goes on", " runs on; ", []string{"--leave-running"}},
		{"and the container ends", " was ended; ", []string{"--json"}},
	} {
		t.Run(test.name, func(t *testing.T) { dies(t, test.words, test.flags) })
	}
}

// TestRegistryMisfit restores from a registry what does not fit or may not be: it costs no segments and leaves nothing.
func TestRegistryMisfit(t *testing.T) {
	_, b := pair(t)
	f := freezeImage(t, shared.image, []string{"--cap-add", "CAP_SYS_ADMIN"}, []string{"count", "--memory", "32"})
	forger := newForger(t, f)
	l := newLine(t, shared.registry)
	for _, test := range []struct {
		name   string
		code   int
		words  string
		change func(*image.Config, *specs.Spec)
	}{
		{"misfit", codeMisfit, "architecture", func(c *image.Config, _ *specs.Spec) { c.Host.Architecture = "s390x" }},
		{"not allowed", codeDenied, "/etc", func(_ *image.Config, s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: "/etc", Destination: "/data", Options: []string{"rbind"}})
		}},
		{"not allowed to its images", codeDenied, "CAP_SYS_ADMIN", func(_ *image.Config, s *specs.Spec) {
			c := s.Process.Capabilities
			for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Permitted} {
				*set = slices.DeleteFunc(*set, func(name string) bool { return name == "CAP_SYS_ADMIN" })
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ref := l.Address + "/misfit/" + name(t) + ":1"
			forger.forge(t, b, ref, test.change)
			must(t, b.Cryo(t.Context(), "push", ref, "--plain-http"))
			must(t, b.Cryo(t.Context(), "rm", ref))
			l.Received.Store(0)
			refused(t, b, test.code, test.words, "restore", ref, "--name", "misfit", "--plain-http")
			if n := l.Received.Load(); n == 0 || n > 2<<20 {
				t.Errorf("%d bytes were fetched to find out", n)
			}
		})
	}
}
