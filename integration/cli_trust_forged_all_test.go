package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestForged has snapshots whose CRIU images would have CRIU, which is root, leave the container, or give it more than was granted: each is refused before CRIU begins, by the
// command and by the shim, nothing outside is touched, and inspect and verify say so. What no flag grants is refused whatever is allowed. TestConfined has those that
// are restored with each protection alone, whose refusal by the review it sees.
func TestForged(t *testing.T) {
	_, b := pair(t)
	c := newCanaries(t, b)
	f := newFuzzed(t, b, "files", c.dir)
	for _, test := range forgeries {
		if test.alone == nil {
			t.Run(test.name, func(t *testing.T) { test.try(t, b, f, c) })
		}
	}
}

// try restores it, and asks what inspect and verify say.
func (test forgery) try(t *testing.T, h *lab.Host, f *fuzzed, c *canaries) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.CopyFS(dir, os.DirFS(f.images)); err != nil {
		t.Fatal(err)
	}
	test.change(t, c, dir)
	f.bring(t, dir)
	cleanup(t, h, "forged")
	const ref = "cryo.test/fuzz:1"
	told(t, h, ref, test.code, test.rule, test.words)
	args := []string{"restore", ref, "--name", "forged"}
	if test.code == codeDamaged {
		args = append(args, "--allow", "all")
	}
	denied(t, h, c, test.code, test.rule, test.words, args...)
}

// TestForgedSysfs has attack 17: the mount of sysfs is writable, and its file system is not. That is restored, and nothing below can be written to.
func TestForgedSysfs(t *testing.T) {
	_, b := pair(t)
	c := newCanaries(t, b)
	f := newFuzzed(t, b, "files", c.dir)
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.CopyFS(dir, os.DirFS(f.images)); err != nil {
		t.Fatal(err)
	}
	remounted("/sys", func(_ *testing.T, e *mnt.MntEntry) { e.Flags = proto.Uint32(e.GetFlags() &^ unix.MS_RDONLY) })(t, c, dir)
	if o := f.restore(t, dir, c); !o.restored || len(o.findings) > 0 {
		t.Errorf("restored: %t, %q: %s", o.restored, o.findings, o.said)
	}
}

// TestForgedUnified has attack 2: a cgroup's property whose name is a path, on a host with cgroup v2.
func TestForgedUnified(t *testing.T) {
	h := newHost(t, "unified", lab.HostOptions{Unified: true})
	c := newCanaries(t, h)
	f := frozen{id: name(t)}
	f.ref = "cryo.test/" + f.id + ":1"
	task := created(t, h, f.id, cryoRuntime, nil, cio.NullIO, []oci.SpecOpts{oci.WithoutRunMount}, "workload", "count")
	if err := task.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
	await(t, h, f.id)
	forget(t, h, f.ref)
	must(t, h.Cryo(t.Context(), "checkpoint", f.id, f.ref))
	remove(t.Context(), h, f.id)
	f.digest = inspect(t, h, f.ref).Digest
	g := newForgerOn(t, h, f)
	const ref = "cryo.test/fuzz:1"
	forget(t, h, ref)
	g.forgeImages(t, h, ref, func(dir string) { addProperty(func(c *canaries) string { return up + canaryOf(c) })(t, c, dir) })
	told(t, h, ref, codeDamaged, "cgroups", "property")
	denied(t, h, c, codeDamaged, "cgroups", "property", "restore", ref, "--name", "forged", "--allow", "all")
}

// told fails unless inspect and verify say what a restore of the snapshot would refuse, and by which rule.
func told(t *testing.T, h *lab.Host, ref string, code int, rule, words string) {
	t.Helper()
	type ask struct{ Rule, What, Flag string }
	type reviewed struct {
		Asks    []ask
		Refused *ask
	}
	for _, command := range []string{"inspect", "verify"} {
		r := h.Cryo(t.Context(), command, "--json", ref)
		if want := map[string]int{"inspect": 0, "verify": code}[command]; r.Code != want {
			t.Errorf("%s: exit code %d, not %d: %s", command, r.Code, want, r.Stderr)
		}
		var said reviewed
		if err := json.Unmarshal([]byte(r.Stdout), &said); err != nil {
			t.Fatalf("%s: %v: %s", command, err, r.Stdout)
		}
		if said.Refused != nil {
			said.Asks = append(said.Asks, *said.Refused)
		}
		if !slices.ContainsFunc(said.Asks, func(a ask) bool {
			return a.Rule == rule && strings.Contains(a.What, words) && (a.Flag == "") == (code == codeDamaged)
		}) {
			t.Errorf("%s says %+v, and not %q by rule %s", command, said.Asks, words, rule)
		}
		plain := h.Cryo(t.Context(), command, ref)
		if all := plain.Stdout + plain.Stderr; !strings.Contains(all, words) || command == "inspect" && !strings.Contains(all, rule) {
			t.Errorf("%s says nothing of %q by rule %s: %s", command, words, rule, all)
		}
	}
}
