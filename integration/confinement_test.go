package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"google.golang.org/protobuf/proto"

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
	for _, test := range confinedAttacks {
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
			f := newFuzzed(t, h, "files", c.dir)
			table[0] += fmt.Sprintf(" | %-46s", p.name)
			for i, test := range confinedAttacks {
				said := "not tried: it would change the host"
				if _, err := os.Stat("/sys/fs/cgroup/devices"); err != nil && test.v1 {
					said = "not tried: this host has cgroup v2"
				} else if p.name != "neither" || !test.real {
					t.Run(test.name, func(t *testing.T) { said = confined(t, p.name, h, f, c, test) })
				}
				table[i+1] += fmt.Sprintf(" | %-46.46s", said)
			}
		})
	}
	t.Log("\n" + strings.Join(table, "\n"))
}

// confined carries out an attack on a host that has a protection, or neither, and says what has become of it.
func confined(t *testing.T, protection string, h *lab.Host, f *fuzzed, c *canaries, test confinedAttack) (said string) {
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
	// CRIU makes a cgroup of the images' name where it takes none for the container's. It has no process, and is what confinement does not keep from being made.
	made := slices.IndexFunc(o.findings, func(finding string) bool {
		at, ok := strings.CutPrefix(finding, "outside of the container, new: cgroup ")
		return ok && os.Remove(fmt.Sprintf("/proc/%d/root/sys/fs/cgroup%s", h.Pid(), at)) == nil
	})
	if made >= 0 && protection == "confinement" {
		o.findings = slices.Delete(o.findings, made, made+1)
	}
	if protection == "neither" {
		if len(o.findings) == 0 {
			t.Fatalf("the attack does nothing where nothing stops it, and so shows nothing: exit code %d, %s", o.code, o.said)
		}
		return o.findings[0]
	}
	code, words := test.code, "(rule "+test.rule+")"
	switch {
	case protection == "confinement" && test.apart: // CRIU sets it, of namespaces that end with it
		code, words = 0, ""
	case protection == "confinement":
		code, words = map[bool]int{true: codeAborted, false: codeDenied}[test.words == readonly], test.words
	}
	if o.hung || len(o.findings) > 0 || o.restored && !(protection == "confinement" && test.apart) {
		t.Errorf("restored: %t, hung: %t, %q", o.restored, o.hung, o.findings)
	}
	if o.code != code && !test.apart || !strings.Contains(o.said, words) {
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

// namesOf is what the host's namespaces have that a restore may be misled to set.
func namesOf(t *testing.T, h *lab.Host) string {
	t.Helper()
	return must(t, h.Run(t.Context(), "cat", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_default_ttl")).Stdout
}

const readonly = "Read-only file system" // CRIU's words

// confinedAttack is one by CRIU's images.
type confinedAttack struct {
	name, words string // by which confinement, or the comparison, stops it
	rule        string // by which the review does
	code        int    // of that
	real        bool   // it changes the host where nothing stops it, and not only canaries
	apart       bool   // CRIU carries it out, in namespaces of its own
	v1          bool   // it is of hierarchies of cgroup v1
	change      func(t *testing.T, c *canaries, dir string)
}

// up leads out of any directory.
var up = strings.Repeat("../", 40)

// property has CRIU write to a file of the host's, by the name of a cgroup's property.
func property(path func(c *canaries) string) func(*testing.T, *canaries, string) {
	perms := &cgroup.CgroupPerms{Mode: proto.Uint32(0o4777), Uid: proto.Uint32(0), Gid: proto.Uint32(0)}
	return func(t *testing.T, c *canaries, dir string) {
		name, value := up+path(c), "forged"
		if strings.HasSuffix(name, "ttl") {
			value = "77"
		}
		rewrite(t, dir, "cgroup.img", func(all []*cgroup.CgroupEntry) []*cgroup.CgroupEntry {
			for _, controller := range all[0].Controllers {
				for _, top := range controller.Dirs { // CRIU sets those of cgroups that it makes
					top.Children = append(top.Children, &cgroup.CgroupDirEntry{DirName: proto.String("made"), DirPerms: perms,
						Properties: []*cgroup.CgroupPropEntry{{Name: &name, Value: &value, Perms: perms}}})
				}
			}
			return all
		})
	}
}

func always(path string) func(*canaries) string { return func(*canaries) string { return path } }

func changedCore(change func(*criucore.CoreEntry)) func(*testing.T, *canaries, string) {
	return func(t *testing.T, _ *canaries, dir string) {
		rewrite(t, dir, "core-1.img", func(all []*criucore.CoreEntry) []*criucore.CoreEntry {
			change(all[0])
			return all
		})
	}
}

func changedMounts(change func(*testing.T, []*mnt.MntEntry) []*mnt.MntEntry) func(*testing.T, *canaries, string) {
	return func(t *testing.T, _ *canaries, dir string) {
		rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry { return change(t, all) })
	}
}

func mountAt(t *testing.T, all []*mnt.MntEntry, path string) *mnt.MntEntry {
	t.Helper()
	for _, e := range all {
		if e.GetMountpoint() == path {
			return e
		}
	}
	t.Fatalf("there is no mount at %s", path)
	return nil
}

var confinedAttacks = []confinedAttack{
	{name: "C1 cgroup property", words: readonly, rule: "cgroups", code: codeDamaged, change: property(func(c *canaries) string { return filepath.Join(c.dir, "x", "canary") })},
	{name: "C1 sysctl", words: readonly, rule: "cgroups", code: codeDamaged, real: true, change: property(always("proc/sys/kernel/core_pattern"))},
	{name: "C1 host name", rule: "cgroups", code: codeDamaged, real: true, apart: true, change: property(always("proc/sys/kernel/hostname"))},
	{name: "C1 time to live", rule: "cgroups", code: codeDamaged, real: true, apart: true, change: property(always("proc/sys/net/ipv4/ip_default_ttl"))},
	{name: "H1 cgroup member", words: "outside of the container's", rule: "cgroups", code: codeDamaged, v1: true, change: func(t *testing.T, _ *canaries, dir string) {
		rewrite(t, dir, "cgroup.img", func(all []*cgroup.CgroupEntry) []*cgroup.CgroupEntry {
			for _, set := range all[0].Sets { // CRIU looks for the name within those of the hierarchies, and finds none of the container's
				for _, member := range set.Ctls {
					if member.GetName() == "devices" {
						member.Name, member.Path = proto.String("x,devices"), proto.String("/")
					}
				}
			}
			return all
		})
	}},
	{name: "C2 deleted file", words: readonly, rule: "open-files", code: codeDamaged,
		change: func(t *testing.T, c *canaries, dir string) { deletedAt(t, dir, "/"+up+filepath.Join(c.dir, "made")) }},
	{name: "C3 proc on proc", words: "proc", rule: "mounts", code: codeDenied, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		first := mountAt(t, all, "/proc")
		second := proto.Clone(first).(*mnt.MntEntry)
		second.MntId, second.ParentMntId = proto.Uint32(first.GetMntId()+100000), first.MntId
		return append([]*mnt.MntEntry{second}, all...)
	})},
	{name: "proc/sys writable", words: "/proc/sys as the kernel has it", rule: "mounts", code: codeDenied, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		masked := mountAt(t, all, "/proc/sys")
		return slices.DeleteFunc(all, func(e *mnt.MntEntry) bool { return e == masked })
	})},
	{name: "block device", words: "a mount of /dev/", rule: "images", code: codeDamaged, real: true, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		e := mountAt(t, all, "/run")
		device, kind := hostDisk(t)
		e.Fstype, e.Fsname, e.Source, e.Options = proto.Uint32(uint32(mnt.Fstype_AUTO)), &kind, &device, proto.String("")
		return all
	})},
	{name: "sysfs writable", words: "/sys writable", rule: "mounts", code: codeDenied, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		e := mountAt(t, all, "/sys")
		e.Flags, e.SbFlags = proto.Uint32(e.GetFlags()&^1), proto.Uint32(e.GetSbFlags()&^1)
		return all
	})},
	{name: "capabilities", words: "CAP_SYS_ADMIN", rule: "credentials", code: codeDenied, change: changedCore(func(e *criucore.CoreEntry) {
		for _, set := range [][]uint32{e.ThreadCore.Creds.CapBnd, e.ThreadCore.Creds.CapPrm, e.ThreadCore.Creds.CapEff} {
			set[0] |= 1 << 21
		}
	})},
	{name: "no_new_privs", words: "no_new_privs", rule: "credentials", code: codeDenied, change: changedCore(func(e *criucore.CoreEntry) { e.ThreadCore.Creds.NoNewPrivs = proto.Uint32(0) })},
	{name: "nice", words: "nice value -20", rule: "credentials", code: codeDenied, change: changedCore(func(e *criucore.CoreEntry) { e.ThreadCore.SchedNice = proto.Int32(-20) })},
}

// deletedAt gives a file that a process has open, and that was deleted, another name.
func deletedAt(t *testing.T, dir, name string) {
	t.Helper()
	deleted := uint32(0)
	rewrite(t, dir, "remap-fpath.img", func(all []*remapfile.RemapFilePathEntry) []*remapfile.RemapFilePathEntry {
		deleted = all[0].GetOrigId()
		return all
	})
	rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
		for _, e := range all {
			if e.GetId() == deleted && e.GetReg() != nil {
				e.Reg.Name = &name
			}
		}
		return all
	})
}

// hostDisk gives the device of the host's root file system, and its kind.
func hostDisk(t *testing.T) (device, kind string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "findmnt", "-no", "SOURCE,FSTYPE", "/").Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(out), &device, &kind); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return device, kind
}
