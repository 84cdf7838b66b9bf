package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/runc"
)

// TestCLITrustNothing has snapshots that ask for what no grant allows: processes of the host in the container's cgroup, paths in names, and fields that are not known.
func TestCLITrustNothing(t *testing.T) {
	_, b := pair(t)
	guarded(t, b)
	f := freeze(t, []string{"count"})
	forger, ref := newForger(t, f), "cryo.test/trust:1"
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })
	for name, test := range map[string]struct {
		words  string
		change func(*specs.Spec)
	}{
		"processes of the host": {"cgroup.procs", func(s *specs.Spec) {
			s.Linux.Resources.Unified = map[string]string{"cgroup.procs": strconv.Itoa(stranger.Process.Pid)}
		}},
		"a path": {"../x", func(s *specs.Spec) { s.Linux.Resources.Unified = map[string]string{"../x": "1"} }},
		"size of huge pages": {"/../2MB", func(s *specs.Spec) {
			s.Linux.Resources.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "/../2MB"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			forger.forge(t, b, ref, func(_ *image.Config, s *specs.Spec) { test.change(s) })
			denied(t, b, nil, codeDenied, "specification", test.words, "restore", ref, "--name", "asking", "--allow", "all")
			if out := must(t, b.Cryo(t.Context(), "inspect", ref)).Stdout; !strings.Contains(out, "whatever is allowed") || !strings.Contains(out, test.words) {
				t.Errorf("inspect does not tell that it is refused:\n%s", out)
			}
		})
	}
	if runc.Ended(stranger.Process.Pid) {
		t.Error("a process of the host was ended")
	}
}

// TestCLITrustMasks restores a container whose specification hides more than it had hidden, as that of an older containerd comes to. It is hidden then, and the container can be
// saved and restored again.
func TestCLITrustMasks(t *testing.T) {
	_, b := pair(t)
	f := freeze(t, []string{"count"})
	pullBases(t)
	forger, ref, again, id := newForger(t, f), "cryo.test/trust:1", "cryo.test/trust:2", name(t)
	forger.forge(t, b, ref, func(_ *image.Config, s *specs.Spec) {
		s.Linux.MaskedPaths = append(s.Linux.MaskedPaths, "/proc/swaps", "/sys/kernel/mm")
	})
	cleanup(t, b, id)
	forget(t, b, again)
	hidden := func() {
		t.Helper()
		counts(t, b, id)
		pid, _, err := b.Task(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		root := fmt.Sprintf("/proc/%d/root", pid)
		if data, err := os.ReadFile(root + "/proc/swaps"); err != nil || len(data) > 0 {
			t.Errorf("/proc/swaps: %q, %v", data, err)
		}
		if entries, err := os.ReadDir(root + "/sys/kernel/mm"); err != nil || len(entries) > 0 {
			t.Errorf("/sys/kernel/mm: %v, %v", entries, err)
		}
	}
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id))
	hidden()
	must(t, b.Cryo(t.Context(), "checkpoint", id, again))
	must(t, b.Ctr(t.Context(), "containers", "rm", id))
	must(t, b.Cryo(t.Context(), "restore", again, "--name", id))
	hidden()
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
