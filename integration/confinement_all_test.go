package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// protections are the two ways by which a hostile snapshot is stopped: the review of CRIU's images; and CRIU's confinement, with the comparison of what it has made with
// the grant. Programs that lack one of them, or both, are in a directory of bin.
var protections = []struct{ name, programs string }{
	{"neither", "unprotected"}, // the control: what is tried does what it is meant to
	{"review", "unconfined"},
	{"confinement", "unreviewed"},
}

// TestConfined restores hostile snapshots with programs that lack the review, or confinement and comparison, or both: without both, each attack is carried out, and each
// of the two is enough to stop it. Its log has a table of what has become of each.
func TestConfined(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // CRIU has a /tmp of its own
	table := []string{fmt.Sprintf("%-22s", "attack")}
	tried := slices.DeleteFunc(slices.Clone(forgeries), func(f forgery) bool { return f.alone == nil })
	for _, test := range tried {
		table = append(table, fmt.Sprintf("%-22s", test.name))
	}
	for _, p := range protections {
		programs := filepath.Join(filepath.Dir(shared.lab.Tool("containerd-shim-cryo-v1")), p.programs)
		if _, err := os.Stat(filepath.Join(programs, "cryo")); err != nil {
			t.Fatalf("%v; run: make weakened", err)
		}
		t.Run(p.name, func(t *testing.T) {
			h := newHost(t, p.programs, lab.HostOptions{Path: []string{programs}})
			c := newCanaries(t, h)
			seeds := map[string]*fuzzed{"": newFuzzed(t, h, "files", c.dir)}
			table[0] += fmt.Sprintf(" | %-46s", p.name)
			for i, test := range tried {
				said := "not tried: it would change the host"
				if _, err := os.Stat("/sys/fs/cgroup/devices"); err != nil && test.alone.v1 {
					said = "not tried: this host has cgroup v2"
				} else if p.name == "review" && test.rule == "" {
					said = "not seen: who may open a file is asked of the kernel"
				} else if p.name != "neither" || !test.alone.real {
					if seeds[test.seed] == nil {
						seeds[test.seed] = forgerySeeds[test.seed](t, h, c)
					}
					t.Run(test.name, func(t *testing.T) { said = confined(t, p.name, h, seeds[test.seed], c, test) })
				}
				table[i+1] += fmt.Sprintf(" | %-46.46s", said)
			}
		})
	}
	t.Log("\n" + strings.Join(table, "\n"))
}

// confined restores a forgery on a host that has one protection, or neither, and returns what has become of it.
func confined(t *testing.T, protection string, h *lab.Host, f *fuzzed, c *canaries, test forgery) (said string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.CopyFS(dir, os.DirFS(f.images)); err != nil {
		t.Fatal(err)
	}
	test.change(t, c, dir)
	before := namesOf(t, h)
	o := f.restore(t, dir, c)
	if after := namesOf(t, h); after != before {
		o.findings = append(o.findings, fmt.Sprintf("the host was %q and is %q", before, after))
	}
	if protection == "neither" {
		if len(o.findings) == 0 {
			t.Fatalf("the attack does nothing where nothing stops it, and so shows nothing: exit code %d, %s", o.code, o.said)
		}
		for _, finding := range o.findings {
			if at, ok := strings.CutPrefix(finding, "outside of the container, new: cgroup "); ok {
				_ = os.Remove(fmt.Sprintf("/proc/%d/root/sys/fs/cgroup%s", h.Pid(), at))
			}
		}
		return o.findings[0]
	}
	code, words := test.code, "(rule "+test.rule+")"
	switch {
	case protection == "confinement" && test.alone.apart: // CRIU sets it, of namespaces that end with it
		code, words = 0, ""
	case protection == "confinement":
		code, words = map[bool]int{true: codeAborted, false: codeDenied}[test.alone.words == readonly || test.alone.before], test.alone.words
	}
	if o.hung || len(o.findings) > 0 || o.restored && !(protection == "confinement" && test.alone.apart) {
		t.Errorf("restored: %t, hung: %t, %q", o.restored, o.hung, o.findings)
	}
	if o.code != code && !test.alone.apart || !strings.Contains(o.said, words) {
		t.Errorf("exit code %d, not %d, or nothing of %q: %s", o.code, code, words, o.said)
	}
	if o.restored {
		return "restored; the host is as it was"
	}
	if words == "" {
		words = "ended; the host is as it was"
	}
	return fmt.Sprintf("exit %d, %s", o.code, words)
}

// namesOf returns the host's name and a setting of its network, which a forged snapshot may try to change.
func namesOf(t *testing.T, h *lab.Host) string {
	t.Helper()
	return must(t, h.Run(t.Context(), "cat", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_default_ttl")).Stdout
}

const readonly = "Read-only file system" // CRIU's words
