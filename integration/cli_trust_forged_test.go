package integration

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/integration/lab"
)

// rewrite changes the records of one of CRIU's images, which begins with two magic numbers.
func rewrite[T any, P interface {
	*T
	proto.Message
}](t *testing.T, dir, pattern string, change func([]P) []P) {
	t.Helper()
	rewriteHead[T, P](t, 8, dir, pattern, change)
}

// rewriteHead is rewrite of an image that begins with so many bytes of magic numbers.
func rewriteHead[T any, P interface {
	*T
	proto.Message
}](t *testing.T, head int, dir, pattern string, change func([]P) []P) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("no image %s: %v", pattern, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	const word = 4
	var all []P
	for rest := data[head:]; len(rest) > 0; {
		n := binary.LittleEndian.Uint32(rest)
		m := P(new(T))
		if err := proto.Unmarshal(rest[word:word+n], m); err != nil {
			t.Fatal(err)
		}
		all, rest = append(all, m), rest[word+n:]
	}
	out := data[:head:head]
	for _, m := range change(all) {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(b))), b...)
	}
	if err := os.WriteFile(found[0], out, 0o600); err != nil {
		t.Fatal(err)
	}
}

// forgedImages is a change of CRIU's images, and how it is refused.
type forgedImages struct {
	name, rule, words string // names begin with the number of the attack
	code              int
	change            func(t *testing.T, c *canaries, dir string)
}

// TestForged has snapshots whose CRIU images would have CRIU, which is root, leave the container, or give it more than was granted: each is refused before CRIU begins, by the
// command and by the shim, nothing outside is touched, and inspect and verify say so. What no flag grants is refused whatever is allowed.
func TestForged(t *testing.T) {
	_, b := pair(t)
	c := newCanaries(t, b)
	f := newFuzzed(t, b, "files", c.dir)
	for _, test := range slices.Concat(forgedPaths, forgedMounts, forgedProcesses, forgedFiles) {
		t.Run(test.name, func(t *testing.T) { test.try(t, b, f, c) })
	}
}

// try restores it, and asks what inspect and verify say.
func (test forgedImages) try(t *testing.T, h *lab.Host, f *fuzzed, c *canaries) {
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

func changedCgroups(change func(c *canaries, e *cgroup.CgroupEntry)) func(*testing.T, *canaries, string) {
	return func(t *testing.T, c *canaries, dir string) {
		rewrite(t, dir, "cgroup.img", func(all []*cgroup.CgroupEntry) []*cgroup.CgroupEntry {
			change(c, all[0])
			return all
		})
	}
}

// openedFile gives the first file that a process has open another name.
func openedFile(name func(c *canaries) string) func(*testing.T, *canaries, string) {
	return func(t *testing.T, c *canaries, dir string) {
		rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
			for _, e := range all {
				if e.GetReg() != nil && e.GetReg().GetName() != "/" {
					e.Reg.Name = proto.String(name(c))
					return all
				}
			}
			t.Fatal("no process has a file open")
			return nil
		})
	}
}

// written puts a file beside CRIU's images.
func written(name, text string) func(*testing.T, *canaries, string) {
	return func(t *testing.T, _ *canaries, dir string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func canaryOf(c *canaries) string { return filepath.Join(c.dir, "canary") }

// addProperty gives the container's cgroup a file of another name.
func addProperty(name func(c *canaries) string) func(*testing.T, *canaries, string) {
	return changedCgroups(func(c *canaries, e *cgroup.CgroupEntry) {
		top := e.Controllers[0].Dirs[0]
		top.Properties = append(top.Properties, &cgroup.CgroupPropEntry{Name: proto.String(name(c)), Value: proto.String("forged"),
			Perms: &cgroup.CgroupPerms{Mode: proto.Uint32(0o4777), Uid: proto.Uint32(0), Gid: proto.Uint32(0)}})
	})
}

// forgedPaths are attacks 1 to 4 and 10 to 12: names by which CRIU leaves the container's directory or cgroup.
var forgedPaths = []forgedImages{
	{"1 cgroup property", "cgroups", "property", codeDamaged, addProperty(func(c *canaries) string { return up + canaryOf(c) })},
	{"3 open file", "open-files", "leads out", codeDamaged, openedFile(func(c *canaries) string { return "/" + up + canaryOf(c) })},
	{"3 deleted file", "open-files", "leads out", codeDamaged, func(t *testing.T, c *canaries, dir string) { deletedAt(t, dir, "/"+up+c.dir+"/made") }},
	{"3 deleted file, cut off", "open-files", "too long", codeDamaged, func(t *testing.T, c *canaries, dir string) {
		deletedAt(t, dir, ("/" + strings.Repeat("../", 1400))[:4095-len(c.dir)-5]+c.dir+"/made")
	}},
	{"4 long open file", "open-files", "too long", codeDamaged, openedFile(func(c *canaries) string { return "/" + strings.Repeat("../", 1340) + canaryOf(c) })},
	{"4 deleted file, setuid", "open-files", "leads out", codeDamaged, func(t *testing.T, c *canaries, dir string) {
		deletedAt(t, dir, "/"+up+c.dir+"/made")
		changedGhost(t, dir, func(e *ghostfile.GhostFileEntry) { e.Mode = proto.Uint32(unix.S_IFREG | 0o4755) })
	}},
	{"4 deleted device", "open-files", "", codeDamaged, func(t *testing.T, _ *canaries, dir string) {
		changedGhost(t, dir, func(e *ghostfile.GhostFileEntry) {
			e.Mode, e.Rdev = proto.Uint32(unix.S_IFBLK|0o666), proto.Uint32(8<<8)
		})
	}},
	{"10 cgroup member", "cgroups", "hierarchy", codeDamaged, changedCgroups(func(_ *canaries, e *cgroup.CgroupEntry) { e.Sets[0].Ctls[0].Name = proto.String("x,devices") })},
	{"11 cgroup controller", "cgroups", "controller", codeDamaged, changedCgroups(func(c *canaries, e *cgroup.CgroupEntry) {
		e.Controllers[0].Cnames = []string{"name=" + up + canaryOf(c) + ".d"}
	})},
	{"11 cgroup", "cgroups", "a cgroup of the name", codeDamaged, changedCgroups(func(c *canaries, e *cgroup.CgroupEntry) {
		e.Controllers[0].Dirs[0].DirName = proto.String(up + canaryOf(c) + ".d")
	})},
	{"12 release_agent", "cgroups", "release_agent", codeDamaged, addProperty(func(*canaries) string { return "release_agent" })},
	{"12 overlong property", "cgroups", "property", codeDamaged, addProperty(func(*canaries) string { return strings.Repeat("a/", 3000) })},
	{"12 overlong cgroup", "cgroups", "too long", codeDamaged, changedCgroups(func(_ *canaries, e *cgroup.CgroupEntry) {
		e.Controllers[0].Dirs[0].DirName = proto.String(strings.Repeat("a", 5000))
	})},
}

// forgedMounts are attacks 8, 9, 15 and 16.
var forgedMounts = []forgedImages{
	{"8 proc on proc", "mounts", "2 mounts of proc", codeDenied, changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		first := mountAt(t, all, "/proc")
		second := proto.Clone(first).(*mnt.MntEntry)
		second.MntId, second.ParentMntId = proto.Uint32(first.GetMntId()+100000), first.MntId
		return append([]*mnt.MntEntry{second}, all...)
	})},
	{"9 masks below what covers proc", "mounts", "", codeDenied, changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		first, run := mountAt(t, all, "/proc"), mountAt(t, all, "/run")
		cover := proto.Clone(run).(*mnt.MntEntry)
		cover.MntId, cover.ParentMntId, cover.Mountpoint = proto.Uint32(first.GetMntId()+100000), first.MntId, proto.String("/proc")
		second := proto.Clone(first).(*mnt.MntEntry)
		second.MntId, second.ParentMntId = proto.Uint32(first.GetMntId()+100001), cover.MntId
		for _, e := range all {
			if e.GetParentMntId() == first.GetMntId() {
				e.ParentMntId = cover.MntId
			}
		}
		return append(all, cover, second)
	})},
	{"15 block device", "mounts", "", codeDenied, remounted("/run", func(t *testing.T, e *mnt.MntEntry) {
		device, _ := hostDisk(t)
		e.Fstype, e.Source, e.Options = proto.Uint32(uint32(mnt.Fstype_AUTO)), &device, proto.String("")
	})},
	{"15 block device, by its file system's name", "images", "fsname", codeDamaged, remounted("/run", func(t *testing.T, e *mnt.MntEntry) {
		device, kind := hostDisk(t)
		e.Fstype, e.Fsname, e.Source, e.Options = proto.Uint32(uint32(mnt.Fstype_AUTO)), &kind, &device, proto.String("")
	})},
	{"15 debugfs", "mounts", "", codeDenied, remounted("/run", func(_ *testing.T, e *mnt.MntEntry) {
		e.Fstype, e.Options = proto.Uint32(uint32(mnt.Fstype_DEBUGFS)), proto.String("")
	})},
	{"15 devtmpfs", "mounts", "", codeDenied, remounted("/run", func(_ *testing.T, e *mnt.MntEntry) {
		e.Fstype, e.Options = proto.Uint32(uint32(mnt.Fstype_DEVTMPFS)), proto.String("")
	})},
	{"15 unknown external key", "mounts", "", codeDenied, remounted("/run", func(_ *testing.T, e *mnt.MntEntry) { e.ExtKey = proto.String("/etc") })},
	{"16 mount point that leads out", "mounts", "", codeDamaged, remounted("/run", func(_ *testing.T, e *mnt.MntEntry) { e.Mountpoint = proto.String("/run/" + up + "etc") })},
	{"bind by a flag", "mounts", "flags 0x1000", codeDamaged, func(t *testing.T, c *canaries, dir string) {
		remounted("/run", func(_ *testing.T, e *mnt.MntEntry) { e.SbFlags, e.Source = proto.Uint32(unix.MS_BIND), &c.dir })(t, c, dir)
	}},
}

// forgedProcesses are attacks 13 and 14: what a process gets that it was not granted.
var forgedProcesses = []forgedImages{
	{"13 real-time", "credentials", "real-time", codeDenied, changedCore(func(e *criucore.CoreEntry) {
		e.ThreadCore.SchedPolicy, e.ThreadCore.SchedPrio = proto.Uint32(unix.SCHED_FIFO), proto.Uint32(50)
	})},
	{"13 nice", "credentials", "nice value -20", codeDenied, changedCore(func(e *criucore.CoreEntry) { e.ThreadCore.SchedNice = proto.Int32(-20) })},
	{"14 no_new_privs", "credentials", "no_new_privs", codeDenied, changedCore(func(e *criucore.CoreEntry) { e.ThreadCore.Creds.NoNewPrivs = proto.Uint32(0) })},
	{"capabilities", "credentials", "CAP_SYS_ADMIN", codeDenied, changedCore(func(e *criucore.CoreEntry) { e.ThreadCore.Creds.CapBnd[0] |= 1 << 21 })},
}

// forgedFiles are attacks 6, 7, and images that no checkpoint writes.
var forgedFiles = []forgedImages{
	{"6 standard streams", "images", "standard streams", codeDamaged, written("descriptors.json", `["/dev/null","/dev/null","/dev/null","pipe:[1]"]`)},
	{"7 more standard streams", "images", "standard streams", codeDamaged,
		written("descriptors.json", `["/dev/null","/dev/null","/dev/null","/dev/null","pipe:[1]","pipe:[2]","pipe:[3]","pipe:[4]","pipe:[5]","pipe:[6]"]`)},
	{"unknown field", "images", "field 900 of mnt_entry", codeDamaged, changedMounts(func(_ *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		all[0].ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1))
		return all
	})},
	{"name of a dump", "inventory", "a dump of the name", codeDamaged, func(t *testing.T, c *canaries, dir string) {
		rewriteHead(t, 4, dir, "inventory.img", func(all []*inventory.InventoryEntry) []*inventory.InventoryEntry {
			all[0].DumpCriuRunId = proto.String("x\ninclude \"" + canaryOf(c) + "\"")
			return all
		})
	}},
	{"unknown image", "images", "autofs-1.img", codeDamaged, written("autofs-1.img", "")},
}

// remounted changes the mount at a path.
func remounted(path string, change func(*testing.T, *mnt.MntEntry)) func(*testing.T, *canaries, string) {
	return changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		change(t, mountAt(t, all, path))
		return all
	})
}

// changedGhost changes the first deleted file that is open. Its contents follow the record.
func changedGhost(t *testing.T, dir string, change func(*ghostfile.GhostFileEntry)) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "ghost-file-*.img"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no deleted file: %v", err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	const head, word = 8, 4
	n := binary.LittleEndian.Uint32(data[head:])
	var e ghostfile.GhostFileEntry
	if err := proto.Unmarshal(data[head+word:head+word+n], &e); err != nil {
		t.Fatal(err)
	}
	change(&e)
	out := append(data[:head:head], record(t, &e)...)
	if err := os.WriteFile(found[0], append(out, data[head+word+n:]...), 0o600); err != nil {
		t.Fatal(err)
	}
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
