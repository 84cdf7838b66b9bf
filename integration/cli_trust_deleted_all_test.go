package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"google.golang.org/protobuf/proto"
)

// TestForgedDeleted has a file that was deleted while it was open below a link of the container's, which leads out where the host follows it: nothing is made there.
func TestForgedDeleted(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	c := newCanaries(t, b)
	f := newFuzzed(t, b, "files", c.dir)
	for name, mount := range map[string]string{"/hostile/made": "/", "/slash" + c.dir + "/made": "/", "/run/hostile/made": "/run"} {
		t.Run(filepath.Base(filepath.Dir(name))+" on "+filepath.Base(mount), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "images")
			if err := os.CopyFS(dir, os.DirFS(f.images)); err != nil {
				t.Fatal(err)
			}
			deleted, on := uint32(0), int32(-1)
			rewrite(t, dir, "remap-fpath.img", func(all []*remapfile.RemapFilePathEntry) []*remapfile.RemapFilePathEntry {
				deleted = all[0].GetOrigId()
				return all
			})
			rewrite(t, dir, "mountpoints-*.img", func(all []*mnt.MntEntry) []*mnt.MntEntry {
				for _, m := range all {
					if m.GetMountpoint() == mount {
						on = int32(m.GetMntId())
					}
				}
				return all
			})
			rewrite(t, dir, "files.img", func(all []*fdinfo.FileEntry) []*fdinfo.FileEntry {
				for _, e := range all {
					if e.GetId() == deleted && e.GetReg() != nil {
						e.Reg.Name, e.Reg.MntId = &name, proto.Int32(on)
					}
				}
				return all
			})
			f.bring(t, dir)
			denied(t, b, c, codeDamaged, "deleted-files", "", "restore", "cryo.test/fuzz:1", "--name", "forged", "--allow", "all")
		})
	}
}
