package integration

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/integration/lab"
)

// forgerySeeds are the containers of attacks that one without mounts of the host's, with one process, does not do for.
var forgerySeeds = map[string]func(t *testing.T, h *lab.Host, c *canaries) *fuzzed{
	"two": func(t *testing.T, h *lab.Host, c *canaries) *fuzzed {
		return newFuzzedOf(t, h, c.dir, nil, nil, "sh", "-c", `sleep 100000 & exec workload "$@"`, "sh", "files")
	},
	"granted": func(t *testing.T, h *lab.Host, c *canaries) *fuzzed {
		return newFuzzedOf(t, h, c.dir, []string{"--mount", "type=bind,src=" + c.dir + ",dst=" + grantedAt + ",options=rbind:ro"}, []trust.Grant{trust.Mounts}, "workload", "files")
	},
	// Its root cannot read what is another user's.
	"capless": func(t *testing.T, h *lab.Host, c *canaries) *fuzzed {
		secret := filepath.Join(c.dir, "secret")
		if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Chown(secret, 1000, 1000)); err != nil {
			t.Fatal(err)
		}
		return newFuzzedOf(t, h, c.dir, []string{"--cap-drop", "CAP_DAC_OVERRIDE", "--mount", "type=bind,src=" + c.dir + ",dst=" + grantedAt + ",options=rbind:ro"}, []trust.Grant{trust.Mounts}, "workload", "files")
	},
}

// grantedAt is where a container has the canaries, read-only.
const grantedAt = "/granted"

// secondMounts puts the second process into a mount namespace of its own, whose root is the host's devtmpfs, with a file of setuid root for it.
func secondMounts(t *testing.T, c *canaries, dir string) {
	const namespace, device = 4711, 0x4711
	var second uint32
	rewrite(t, dir, "pstree.img", func(all []*pstree.PstreeEntry) []*pstree.PstreeEntry {
		second = all[1].GetPid()
		return all
	})
	rewrite(t, dir, imageOf("core", second), func(all []*criucore.CoreEntry) []*criucore.CoreEntry {
		if all[0].Ids != nil {
			all[0].Ids.MntNsId = proto.Uint32(namespace)
		}
		return all
	})
	if _, err := os.Stat(filepath.Join(dir, imageOf("ids", second))); err == nil {
		rewrite(t, dir, imageOf("ids", second), func(all []*criucore.TaskKobjIdsEntry) []*criucore.TaskKobjIdsEntry {
			all[0].MntNsId = proto.Uint32(namespace)
			return all
		})
	}
	found, err := filepath.Glob(filepath.Join(dir, "mountpoints-*.img"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q: %v", found, err)
	}
	data, err := os.ReadFile(found[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, imageOf("mountpoints", namespace)), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, dir, imageOf("mountpoints", namespace), func(all []*mnt.MntEntry) []*mnt.MntEntry {
		root := mountAt(t, all, "/")
		root.Fstype, root.RootDev, root.Flags, root.Source, root.Options, root.SbFlags = proto.Uint32(uint32(mnt.Fstype_DEVTMPFS)), proto.Uint32(device), proto.Uint32(0),
			proto.String("devtmpfs"), proto.String(""), proto.Uint32(0)
		for _, e := range all {
			e.MntId, e.ParentMntId = proto.Uint32(e.GetMntId()+100000), proto.Uint32(e.GetParentMntId()+100000)
		}
		return all
	})
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("tmpfs-dev-%d.tar.gz.img", device)))
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	a := tar.NewWriter(z)
	err = a.WriteHeader(&tar.Header{Name: "./" + forgedDevice, Typeflag: tar.TypeReg, Mode: 0o4755, Format: tar.FormatPAX})
	if err := errors.Join(err, a.Close(), z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove("/dev/" + forgedDevice) })
}

// forgedDevice is what a forged snapshot makes in the host's /dev.
const forgedDevice = "cryo-forged"

// grantedMount returns the number of the mount of the canaries.
func grantedMount(t *testing.T, dir string) (id int32) {
	t.Helper()
	rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry {
		id = int32(mountAt(t, all, grantedAt).GetMntId())
		return all
	})
	return id
}

// deletedFile returns the entry of the file that is open and deleted.
func deletedFile(t *testing.T, dir string, all []*fdinfo.FileEntry) *fdinfo.FileEntry {
	t.Helper()
	deleted := uint32(0)
	rewrite(t, dir, "remap-fpath.img", func(all []*remapfile.RemapFilePathEntry) []*remapfile.RemapFilePathEntry {
		deleted = all[0].GetOrigId()
		return all
	})
	for _, e := range all {
		if e.GetReg() != nil && e.GetId() == deleted {
			return e
		}
	}
	t.Fatal("no file is open and deleted")
	return nil
}

// deletedOnGranted has CRIU make a file on a mount that is granted read-only, and fail when it has.
func deletedOnGranted(t *testing.T, _ *canaries, dir string) {
	on := grantedMount(t, dir)
	rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
		e := deletedFile(t, dir, all)
		e.Reg.Name, e.Reg.MntId, e.Reg.Size = proto.String(grantedAt+"/made"), &on, proto.Uint64(e.Reg.GetSize()+1)
		return all
	})
}

// TestFailedRestoreLeaves has a restore fail when CRIU has made a deleted file on a mount of the host's that can be written to: nothing of it is left.
func TestFailedRestoreLeaves(t *testing.T) {
	_, b := pair(t)
	c := newCanaries(t, b)
	f := newFuzzedOf(t, b, c.dir, []string{"--mount", "type=bind,src=" + c.dir + ",dst=" + grantedAt + ",options=rbind:rw"}, []trust.Grant{trust.Mounts}, "workload", "files")
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.CopyFS(dir, os.DirFS(f.images)); err != nil {
		t.Fatal(err)
	}
	deletedOnGranted(t, c, dir)
	o := f.restore(t, dir, c)
	o.findings = slices.DeleteFunc(o.findings, func(finding string) bool { // its time has changed
		return strings.HasPrefix(finding, "outside of the container: "+c.dir+" was ")
	})
	if o.restored || len(o.findings) > 0 || !strings.Contains(o.said, "bad size") {
		t.Errorf("restored: %t, %q: %s", o.restored, o.findings, o.said)
	}
}

// linkedOnGranted has CRIU unlink a file of a mount that is granted read-only.
func linkedOnGranted(t *testing.T, _ *canaries, dir string) {
	const target = 47110
	on := grantedMount(t, dir)
	rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
		e := deletedFile(t, dir, all)
		e.Reg.Name, e.Reg.MntId, e.Reg.Size, e.Reg.Mode = proto.String(grantedAt+"/made"), &on, nil, proto.Uint32(0o100640)
		other := proto.CloneOf(e)
		other.Id, other.Reg.Id, other.Reg.Name = proto.Uint32(target), proto.Uint32(target), proto.String(grantedAt+"/x/canary")
		return append(all, other)
	})
	rewrite(t, dir, "remap-fpath.img", func(all []*remapfile.RemapFilePathEntry) []*remapfile.RemapFilePathEntry {
		all[0].RemapId, all[0].RemapType = proto.Uint32(target), remapfile.RemapType_LINKED.Enum()
		return all
	})
}

func imageOf(kind string, id uint32) string { return fmt.Sprintf("%s-%d.img", kind, id) }

// openedKernel gives the first file that is open for reading another name, in /proc.
func openedKernel(name string, mode uint32) func(t *testing.T, c *canaries, dir string) {
	return func(t *testing.T, _ *canaries, dir string) {
		var on int32
		rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry {
			on = int32(mountAt(t, all, "/proc").GetMntId())
			return all
		})
		reopen(t, dir, name, on, mode)
	}
}

// openedSecret has a file open that root cannot read without a capability.
func openedSecret(t *testing.T, _ *canaries, dir string) {
	reopen(t, dir, grantedAt+"/secret", grantedMount(t, dir), 0o100600)
}

// reopen has another file open, for reading, in the place of one.
func reopen(t *testing.T, dir, name string, on int32, mode uint32) {
	t.Helper()
	rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
		for _, e := range all {
			if r := e.GetReg(); r != nil && filepath.Base(r.GetName()) == "read" {
				r.Name, r.MntId, r.Mode, r.Size, r.Flags, r.Pos = &name, &on, &mode, nil, proto.Uint32(0), proto.Uint64(0)
				return all
			}
		}
		t.Fatal("the file is not open")
		return nil
	})
}
