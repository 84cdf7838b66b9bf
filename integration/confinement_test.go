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

// TestConfined restores hostile snapshots with programs that do not review CRIU's images (make unreviewed): CRIU can write to nothing outside of the container,
// and a container that has more than it was granted is ended before it runs.
func TestConfined(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // CRIU has a /tmp of its own
	programs := filepath.Join(filepath.Dir(shared.lab.Tool("containerd-shim-cryo-v1")), "unreviewed")
	if _, err := os.Stat(filepath.Join(programs, "cryo")); err != nil {
		t.Fatalf("%v; run: make unreviewed", err)
	}
	h := newHost(t, "unreviewed", lab.HostOptions{Path: []string{programs}})
	c := newCanaries(t, h)
	f := newFuzzed(t, h, "files", c.dir)
	canary := filepath.Join(c.dir, "x", "canary")
	up := strings.Repeat("../", 40)
	perms := &cgroup.CgroupPerms{Mode: proto.Uint32(0o4777), Uid: proto.Uint32(0), Gid: proto.Uint32(0)}
	property := func(path string) func(*testing.T, string) {
		value := "forged"
		if strings.HasSuffix(path, "ttl") {
			value = "77"
		}
		return func(t *testing.T, dir string) {
			rewrite(t, dir, "cgroup.img", func(all []*cgroup.CgroupEntry) []*cgroup.CgroupEntry {
				for _, controller := range all[0].Controllers {
					for _, top := range controller.Dirs { // CRIU sets those of cgroups that it makes
						top.Children = append(top.Children, &cgroup.CgroupDirEntry{DirName: proto.String("made"), DirPerms: perms,
							Properties: []*cgroup.CgroupPropEntry{{Name: proto.String(path), Value: &value, Perms: perms}}})
					}
				}
				return all
			})
		}
	}
	core := func(change func(*criucore.CoreEntry)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			rewrite(t, dir, "core-1.img", func(all []*criucore.CoreEntry) []*criucore.CoreEntry {
				change(all[0])
				return all
			})
		}
	}
	mounts := func(change func(*testing.T, []*mnt.MntEntry) []*mnt.MntEntry) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry { return change(t, all) })
		}
	}
	at := func(t *testing.T, all []*mnt.MntEntry, path string) *mnt.MntEntry {
		t.Helper()
		for _, e := range all {
			if e.GetMountpoint() == path {
				return e
			}
		}
		t.Fatalf("there is no mount at %s", path)
		return nil
	}
	for _, file := range []string{"kernel/hostname", "net/ipv4/ip_default_ttl"} {
		t.Run("C1 "+file, func(t *testing.T) { hostname(t, h, f, c, property(up+"proc/sys/"+file)) })
	}
	const readonly = "Read-only file system" // CRIU's words
	for _, test := range []struct {
		name, words string
		change      func(t *testing.T, dir string)
	}{
		{"C1 cgroup property", readonly, property(up + canary)},
		{"C1 sysctl", readonly, property(up + "proc/sys/kernel/core_pattern")},
		{"H1 cgroup member", "outside of the container's", func(t *testing.T, dir string) {
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
		{"C2 deleted file", readonly, func(t *testing.T, dir string) { deletedAt(t, dir, "/"+up+filepath.Join(c.dir, "made")) }},
		{"C3 proc on proc", "proc", mounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
			first := at(t, all, "/proc")
			second := proto.Clone(first).(*mnt.MntEntry)
			second.MntId, second.ParentMntId = proto.Uint32(first.GetMntId()+100000), first.MntId
			return append([]*mnt.MntEntry{second}, all...)
		})},
		{"proc/sys writable", "/proc/sys as the kernel has it", mounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
			masked := at(t, all, "/proc/sys")
			return slices.DeleteFunc(all, func(e *mnt.MntEntry) bool { return e == masked })
		})},
		{"block device", "a mount of /dev/", mounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
			e := at(t, all, "/run")
			device, kind := hostDisk(t)
			e.Fstype, e.Fsname, e.Source, e.Options = proto.Uint32(uint32(mnt.Fstype_AUTO)), &kind, &device, proto.String("")
			return all
		})},
		{"sysfs writable", "/sys writable", mounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
			e := at(t, all, "/sys")
			e.Flags, e.SbFlags = proto.Uint32(e.GetFlags()&^1), proto.Uint32(e.GetSbFlags()&^1)
			return all
		})},
		{"capabilities", "CAP_SYS_ADMIN", core(func(e *criucore.CoreEntry) {
			for _, set := range [][]uint32{e.ThreadCore.Creds.CapBnd, e.ThreadCore.Creds.CapPrm, e.ThreadCore.Creds.CapEff} {
				set[0] |= 1 << 21
			}
		})},
		{"no_new_privs", "no_new_privs", core(func(e *criucore.CoreEntry) { e.ThreadCore.Creds.NoNewPrivs = proto.Uint32(0) })},
		{"nice", "nice value -20", core(func(e *criucore.CoreEntry) { e.ThreadCore.SchedNice = proto.Int32(-20) })},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "images")
			if err := os.CopyFS(dir, os.DirFS(f.images)); err != nil {
				t.Fatal(err)
			}
			test.change(t, dir)
			o := f.restore(t, dir, c)
			// CRIU makes a cgroup of the images' name where it takes none for the container's. It has no process, and is what confinement does not keep from being made.
			o.findings = slices.DeleteFunc(o.findings, func(finding string) bool {
				made, ok := strings.CutPrefix(finding, "outside of the container, new: cgroup ")
				return ok && os.Remove(fmt.Sprintf("/proc/%d/root/sys/fs/cgroup%s", h.Pid(), made)) == nil
			})
			if o.restored || o.hung || len(o.findings) > 0 {
				t.Errorf("restored: %t, hung: %t, %q", o.restored, o.hung, o.findings)
			}
			if code := map[bool]int{true: codeAborted, false: codeDenied}[test.words == readonly]; o.code != code {
				t.Errorf("exit code %d, not %d", o.code, code)
			}
			if !strings.Contains(o.said, test.words) {
				t.Errorf("it says nothing of %q: %s", test.words, o.said)
			}
		})
	}
}

// hostname has CRIU set the name of its host: it is that of a namespace that ends with CRIU.
func hostname(t *testing.T, h *lab.Host, f *fuzzed, c *canaries, misled func(*testing.T, string)) {
	t.Helper()
	name := func() string {
		return must(t, h.Run(t.Context(), "cat", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_default_ttl")).Stdout
	}
	before := name()
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.CopyFS(dir, os.DirFS(f.images)); err != nil {
		t.Fatal(err)
	}
	misled(t, dir)
	if o := f.restore(t, dir, c); o.hung || len(o.findings) > 0 {
		t.Errorf("hung: %t, %q: %s", o.hung, o.findings, o.said)
	}
	if after := name(); after != before {
		t.Errorf("the host was %q and is %q", before, after)
	}
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
