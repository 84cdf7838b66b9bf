package integration

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"google.golang.org/protobuf/proto"
)

// up leads out of any directory.
var up = strings.Repeat("../", 40)

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

func changedCgroups(change func(c *canaries, e *cgroup.CgroupEntry)) func(*testing.T, *canaries, string) {
	return func(t *testing.T, c *canaries, dir string) {
		rewrite(t, dir, "cgroup.img", func(all []*cgroup.CgroupEntry) []*cgroup.CgroupEntry {
			change(c, all[0])
			return all
		})
	}
}

// openedFile returns a change that renames the first file that a process has open.
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

// addProperty returns a change that adds a property to the container's cgroup. CRIU writes a property to the file of its name.
func addProperty(name func(c *canaries) string) func(*testing.T, *canaries, string) {
	return changedCgroups(func(c *canaries, e *cgroup.CgroupEntry) {
		top := e.Controllers[0].Dirs[0]
		top.Properties = append(top.Properties, &cgroup.CgroupPropEntry{Name: proto.String(name(c)), Value: proto.String("forged"),
			Perms: &cgroup.CgroupPerms{Mode: proto.Uint32(0o4777), Uid: proto.Uint32(0), Gid: proto.Uint32(0)}})
	})
}

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

// remounted changes the mount at a path.
func remounted(path string, change func(*testing.T, *mnt.MntEntry)) func(*testing.T, *canaries, string) {
	return changedMounts(func(t *testing.T, all []*mnt.MntEntry) []*mnt.MntEntry {
		change(t, mountAt(t, all, path))
		return all
	})
}

// changedGhost changes CRIU's record of the first deleted file that a process has open. In the image, the file's contents follow the record.
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

// deletedAt renames a file that was deleted while a process had it open.
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

// hostDisk returns the device of the host's root file system, and the kind of that file system.
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
