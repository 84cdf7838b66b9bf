package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// TestCLIFitForced overrides a rule that can be overridden, and not one that cannot; a warning does not stand in the way.
func TestCLIFitForced(t *testing.T) {
	_, b := pair(t)
	f := freeze(t, []string{"count"})
	forger, ref := newForger(t, f), "cryo.test/fit:1"
	forger.forge(t, b, ref, func(c *image.Config, _ *specs.Spec) { c.Host.Architecture = "s390x" })
	refused(t, b, codeMisfit, "architecture", "restore", ref, "--force", "architecture")
	refused(t, b, codeMisfit, "architecture", "restore", ref, "--force", "all")

	forger.forge(t, b, ref, func(c *image.Config, _ *specs.Spec) {
		c.Host.CPUFeatures = append(c.Host.CPUFeatures, "fma4", "amx_complex")
		c.Host.Kernel = "99.0.0"
	})
	refused(t, b, codeUsage, "there is no rule", "restore", ref, "--force", "cpu")
	id := name(t)
	cleanup(t, b, id)
	pullBase(t, b)
	r := must(t, b.Cryo(t.Context(), "restore", ref, "--force", "cpu-features", "--name", id))
	for _, warned := range []string{"fma4", "99.0.0"} {
		if !strings.Contains(r.Stderr, warned) {
			t.Errorf("no warning of %s:\n%s", warned, r.Stderr)
		}
	}
	goneOn(t, f.before, await(t, b, id))
}

// TestCLIFitNetworkLock has a snapshot whose network CRIU has locked with nftables, and a CRIU that says that it cannot, and then
// that it can.
func TestCLIFitNetworkLock(t *testing.T) {
	dir, err := os.MkdirTemp(shared.lab.Dir, "nftables")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	program, gone := filepath.Join(dir, "criu"), filepath.Join(dir, "gone")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *network_lock_nftables*) test ! -e %s || exit 1;; esac\nexec %s \"$@\"\n", gone, shared.lab.CRIU())
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "nftables", lab.HostOptions{CryoConfig: fmt.Sprintf("criu = %q\n[dump]\nnetwork-lock = \"nftables\"\n", program)})
	id, ref := name(t), "cryo.test/nftables:1"
	start(t, h, id, nil, "workload", "count")
	before := await(t, h, id)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	if err := os.WriteFile(gone, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, h, codeMisfit, "\n  network-lock: ", "restore", ref, "--name", id)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
	goneOn(t, before, await(t, h, id))
	remove(t.Context(), h, id)
	if err := os.WriteFile(gone, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.Cryo(t.Context(), "inspect", "--check", ref); r.Code != codeMisfit || !strings.Contains(r.Stdout, "network-lock") {
		t.Errorf("exit status %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}
