package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// forgery is a change of CRIU's images by which CRIU, which is root, would leave the container, or give it more than was granted.
type forgery struct {
	name   string // begins with the number of the attack in attacks.md
	rule   string // by which the review refuses it; empty: the review does not see it
	words  string // a part of the review's message
	code   int    // exit code of the command when the review refuses it
	seed   string // the container of which it is forged; see forgerySeeds
	change func(t *testing.T, c *canaries, dir string)
	alone  *unreviewed // how each protection alone stops it; nil: that is not tried
}

// unreviewed says how a forgery is stopped where the review is missing.
type unreviewed struct {
	words  string // a part of the message of confinement, or of the comparison, that stops it
	before bool   // confinement stops it before the comparison
	real   bool   // it changes the host where nothing stops it, and not only canaries
	apart  bool   // CRIU carries it out, in namespaces of its own
	v1     bool   // it is of hierarchies of cgroup v1
}

// forgeries are all of them: names by which CRIU leaves the container's directory or cgroup, mounts, what a process gets that it was not granted, images and options that no
// checkpoint writes, and those that are also restored with each protection alone.
var forgeries = []forgery{
	{name: "3 open file", rule: "open-files", words: "leads out", code: codeDamaged, change: openedFile(func(c *canaries) string { return "/" + up + canaryOf(c) })},
	{name: "3 deleted file, cut off", rule: "open-files", words: "too long", code: codeDamaged, change: func(t *testing.T, c *canaries, dir string) {
		deletedAt(t, dir, ("/" + strings.Repeat("../", 1400))[:4095-len(c.dir)-5]+c.dir+"/made")
	}},
	{name: "4 long open file", rule: "open-files", words: "too long", code: codeDamaged, change: openedFile(func(c *canaries) string { return "/" + strings.Repeat("../", 1340) + canaryOf(c) })},
	{name: "4 deleted file, setuid", rule: "open-files", words: "leads out", code: codeDamaged, change: func(t *testing.T, c *canaries, dir string) {
		deletedAt(t, dir, "/"+up+c.dir+"/made")
		changedGhost(t, dir, func(e *ghostfile.GhostFileEntry) { e.Mode = proto.Uint32(unix.S_IFREG | 0o4755) })
	}},
	{name: "4 deleted device", rule: "open-files", code: codeDamaged, change: func(t *testing.T, _ *canaries, dir string) {
		changedGhost(t, dir, func(e *ghostfile.GhostFileEntry) {
			e.Mode, e.Rdev = proto.Uint32(unix.S_IFBLK|0o666), proto.Uint32(8<<8)
		})
	}},
	{name: "10 cgroup member", rule: "cgroups", words: "hierarchy", code: codeDamaged, change: changedCgroups(func(_ *canaries, e *cgroup.CgroupEntry) { e.Sets[0].Ctls[0].Name = proto.String("x,devices") })},
	{name: "11 cgroup controller", rule: "cgroups", words: "controller", code: codeDamaged, change: changedCgroups(func(c *canaries, e *cgroup.CgroupEntry) {
		e.Controllers[0].Cnames = []string{"name=" + up + canaryOf(c) + ".d"}
	})},
	{name: "11 cgroup", rule: "cgroups", words: "a cgroup of the name", code: codeDamaged, change: changedCgroups(func(c *canaries, e *cgroup.CgroupEntry) {
		e.Controllers[0].Dirs[0].DirName = proto.String(up + canaryOf(c) + ".d")
	})},
	{name: "12 release_agent", rule: "cgroups", words: "release_agent", code: codeDamaged, change: addProperty(func(*canaries) string { return "release_agent" })},
	{name: "12 overlong property", rule: "cgroups", words: "property", code: codeDamaged, change: addProperty(func(*canaries) string { return strings.Repeat("a/", 3000) })},
	{name: "12 overlong cgroup", rule: "cgroups", words: "too long", code: codeDamaged, change: changedCgroups(func(_ *canaries, e *cgroup.CgroupEntry) {
		e.Controllers[0].Dirs[0].DirName = proto.String(strings.Repeat("a", 5000))
	})},
	{name: "9 masks below what covers proc", rule: "mounts", code: codeDenied, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
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
	{name: "15 block device", rule: "mounts", code: codeDenied, change: remounted("/run", func(t *testing.T, e *mnt.MntEntry) {
		device, _ := hostDisk(t)
		e.Fstype, e.Source, e.Options = proto.Uint32(uint32(mnt.Fstype_AUTO)), &device, proto.String("")
	})},
	{name: "15 debugfs", rule: "mounts", code: codeDenied, change: remounted("/run", func(_ *testing.T, e *mnt.MntEntry) {
		e.Fstype, e.Options = proto.Uint32(uint32(mnt.Fstype_DEBUGFS)), proto.String("")
	})},
	{name: "15 devtmpfs", rule: "mounts", code: codeDenied, change: remounted("/run", func(_ *testing.T, e *mnt.MntEntry) {
		e.Fstype, e.Options = proto.Uint32(uint32(mnt.Fstype_DEVTMPFS)), proto.String("")
	})},
	{name: "15 unknown external key", rule: "mounts", code: codeDenied, change: remounted("/run", func(_ *testing.T, e *mnt.MntEntry) { e.ExtKey = proto.String("/etc") })},
	{name: "16 mount point that leads out", rule: "mounts", code: codeDamaged, change: remounted("/run", func(_ *testing.T, e *mnt.MntEntry) { e.Mountpoint = proto.String("/run/" + up + "etc") })},
	{name: "bind by a flag", rule: "mounts", words: "flags 0x1000", code: codeDamaged, change: func(t *testing.T, c *canaries, dir string) {
		remounted("/run", func(_ *testing.T, e *mnt.MntEntry) { e.SbFlags, e.Source = proto.Uint32(unix.MS_BIND), &c.dir })(t, c, dir)
	}},
	{name: "13 real-time", rule: "credentials", words: "real-time", code: codeDenied, change: changedCore(func(e *criucore.CoreEntry) {
		e.ThreadCore.SchedPolicy, e.ThreadCore.SchedPrio = proto.Uint32(unix.SCHED_FIFO), proto.Uint32(50)
	})},
	{name: "6 standard streams", rule: "images", words: "standard streams", code: codeDamaged, change: written("descriptors.json", `["/dev/null","/dev/null","/dev/null","pipe:[1]"]`)},
	{name: "7 more standard streams", rule: "images", words: "standard streams", code: codeDamaged,
		change: written("descriptors.json", `["/dev/null","/dev/null","/dev/null","/dev/null","pipe:[1]","pipe:[2]","pipe:[3]","pipe:[4]","pipe:[5]","pipe:[6]"]`)},
	{name: "sockets of outside", rule: "choices", words: "unix sockets outside of the container", code: codeDenied, change: written("cryo.json", `{"externalSockets":true}`)},
	{name: "an option of CRIU's", rule: "images", words: "shellJob", code: codeDamaged, change: written("cryo.json", `{"shellJob":true}`)},
	{name: "another file of ours", rule: "images", words: "cryo-hooks.json", code: codeDamaged, change: written("cryo-hooks.json", `{}`)},
	{name: "unknown field", rule: "images", words: "field 900 of mnt_entry", code: codeDamaged, change: changedMounts(func(_ *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		all[0].ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1))
		return all
	})},
	{name: "name of a dump", rule: "inventory", words: "a dump of the name", code: codeDamaged, change: func(t *testing.T, c *canaries, dir string) {
		rewriteHead(t, 4, dir, "inventory.img", func(all []*inventory.InventoryEntry) []*inventory.InventoryEntry {
			all[0].DumpCriuRunId = proto.String("x\ninclude \"" + canaryOf(c) + "\"")
			return all
		})
	}},
	{name: "unknown image", rule: "images", words: "autofs-1.img", code: codeDamaged, change: written("autofs-1.img", "")},
	{name: "C1 cgroup property", rule: "cgroups", code: codeDamaged, alone: &unreviewed{words: readonly}, change: property(func(c *canaries) string { return filepath.Join(c.dir, "x", "canary") })},
	{name: "C1 sysctl", rule: "cgroups", code: codeDamaged, alone: &unreviewed{words: readonly, real: true}, change: property(always("proc/sys/kernel/core_pattern"))},
	{name: "C1 host name", rule: "cgroups", code: codeDamaged, alone: &unreviewed{real: true, apart: true}, change: property(always("proc/sys/kernel/hostname"))},
	{name: "C1 time to live", rule: "cgroups", code: codeDamaged, alone: &unreviewed{real: true, apart: true}, change: property(always("proc/sys/net/ipv4/ip_default_ttl"))},
	{name: "H1 cgroup member", rule: "cgroups", code: codeDamaged, alone: &unreviewed{words: "outside of the container's", v1: true}, change: func(t *testing.T, _ *canaries, dir string) {
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
	{name: "C2 deleted file", rule: "open-files", code: codeDamaged, alone: &unreviewed{words: readonly},
		change: func(t *testing.T, c *canaries, dir string) { deletedAt(t, dir, "/"+up+filepath.Join(c.dir, "made")) }},
	{name: "C3 proc on proc", rule: "mounts", code: codeDenied, alone: &unreviewed{words: "proc"}, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		first := mountAt(t, all, "/proc")
		second := proto.Clone(first).(*mnt.MntEntry)
		second.MntId, second.ParentMntId = proto.Uint32(first.GetMntId()+100000), first.MntId
		return append([]*mnt.MntEntry{second}, all...)
	})},
	{name: "proc/sys writable", rule: "mounts", code: codeDenied, alone: &unreviewed{words: "/proc/sys as the kernel has it"}, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		masked := mountAt(t, all, "/proc/sys")
		return slices.DeleteFunc(all, func(e *mnt.MntEntry) bool { return e == masked })
	})},
	{name: "block device", rule: "images", code: codeDamaged, alone: &unreviewed{words: "a mount of AUTO", before: true, real: true}, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		e := mountAt(t, all, "/run")
		device, kind := hostDisk(t)
		e.Fstype, e.Fsname, e.Source, e.Options = proto.Uint32(uint32(mnt.Fstype_AUTO)), &kind, &device, proto.String("")
		return all
	})},
	{name: "sysfs writable", rule: "mounts", code: codeDenied, alone: &unreviewed{words: "/sys writable"}, change: changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		e := mountAt(t, all, "/sys")
		e.Flags, e.SbFlags = proto.Uint32(e.GetFlags()&^1), proto.Uint32(e.GetSbFlags()&^1)
		return all
	})},
	{name: "capabilities", rule: "credentials", code: codeDenied, alone: &unreviewed{words: "CAP_SYS_ADMIN"}, change: changedCore(func(e *criucore.CoreEntry) {
		for _, set := range [][]uint32{e.ThreadCore.Creds.CapBnd, e.ThreadCore.Creds.CapPrm, e.ThreadCore.Creds.CapEff} {
			set[0] |= 1 << 21
		}
	})},
	{name: "no_new_privs", rule: "credentials", code: codeDenied, alone: &unreviewed{words: "no_new_privs"}, change: changedCore(func(e *criucore.CoreEntry) { e.ThreadCore.Creds.NoNewPrivs = proto.Uint32(0) })},
	{name: "34-1 mount namespace", seed: "two", rule: "nested-namespaces", code: codeDamaged, alone: &unreviewed{words: "2 mount namespaces", before: true, real: true}, change: secondMounts},
	{name: "34-2 deleted, granted", seed: "granted", rule: "deleted-files", code: codeDamaged, alone: &unreviewed{words: "CRIU may not write to", before: true}, change: deletedOnGranted},
	{name: "34-3 linked, granted", seed: "granted", rule: "deleted-files", code: codeDamaged, alone: &unreviewed{words: "CRIU may not write to", before: true}, change: linkedOnGranted},
	{name: "34-5 kernel log", rule: "kernel-files", code: codeDenied, alone: &unreviewed{words: "Operation not permitted", before: true}, change: openedKernel("/proc/kmsg", 0o100400)},
	{name: "34-5 addresses", rule: "kernel-files", code: codeDenied, alone: &unreviewed{words: "/proc/kallsyms open"}, change: openedKernel("/proc/kallsyms", 0o100444)},
	{name: "34-5 frame numbers", rule: "kernel-files", code: codeDenied, alone: &unreviewed{words: "/proc/1/pagemap open"}, change: openedKernel("/proc/1/pagemap", 0o100400)},
	{name: "34-6 granted, unreadable", seed: "capless", alone: &unreviewed{words: "which its user may not open"}, change: openedSecret},
	{name: "nice", rule: "credentials", code: codeDenied, alone: &unreviewed{words: "nice value -20"}, change: changedCore(func(e *criucore.CoreEntry) { e.ThreadCore.SchedNice = proto.Int32(-20) })},
}
