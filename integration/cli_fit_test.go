package integration

import (
	"errors"
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
	program := filepath.Join(dir, "criu")
	install := func(exit int) { // as another CRIU: what one has said is kept
		t.Helper()
		script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *network_lock_nftables*) exit %d;; esac\nexec %s \"$@\"\n", exit, shared.lab.CRIU())
		if err := errors.Join(os.WriteFile(program+".new", []byte(script), 0o755), os.Rename(program+".new", program)); err != nil {
			t.Fatal(err)
		}
	}
	install(0)
	h := newHost(t, "nftables", lab.HostOptions{CryoConfig: fmt.Sprintf("criu = %q\n[dump]\nnetwork-lock = \"nftables\"\n", program)})
	id, ref := name(t), "cryo.test/nftables:1"
	start(t, h, id, nil, "workload", "count")
	before := await(t, h, id)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	install(1)
	refused(t, h, codeMisfit, "\n  network-lock: ", "restore", ref, "--name", id)
	install(0)
	must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
	goneOn(t, before, await(t, h, id))
	remove(t.Context(), h, id)
	install(1)
	if r := h.Cryo(t.Context(), "inspect", "--check", ref); r.Code != codeMisfit || !strings.Contains(r.Stdout, "network-lock") {
		t.Errorf("exit status %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}
