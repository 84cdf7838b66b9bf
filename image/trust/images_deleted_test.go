package trust

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

func TestMade(t *testing.T) {
	for name, bad := range map[string]bool{"/a": false, "/dir/a": false, "/dir/none/a": false, "/link/a": true, "/link/none/a": true, "/dir/back/a": true,
		"/tmp/a": false, "/tmp/sub/a": false, "/tmp/none/a": false, "/tmp/out/a": true, "/tmp/same/a": true, "/tmp/gone/out/none/a": true} {
		rootfs, dir := t.TempDir(), t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(rootfs, "dir"), 0o700), os.Symlink("/", filepath.Join(rootfs, "link")), os.Symlink("..", filepath.Join(rootfs, "dir/back"))); err != nil {
			t.Fatal(err)
		}
		f := reg(name)
		f.Id = proto.Uint32(9)
		if strings.HasPrefix(name, "/tmp/") {
			f.Reg.MntId = proto.Int32(3)
		}
		writeImage(t, dir, "mountpoints-12.img", mount(1, 99, mnt.Fstype_OVERLAYFS, 0, "/", "/", "overlay", ""), mount(3, 1, mnt.Fstype_TMPFS, 0, "/", "/tmp", "tmpfs", ""))
		archive(t, filepath.Join(dir, "tmpfs-dev-3.tar.gz.img"), []tar.Header{{Name: "./sub", Typeflag: tar.TypeDir}, {Name: "./out", Typeflag: tar.TypeSymlink, Linkname: "/"},
			{Name: "./same", Typeflag: tar.TypeLink, Linkname: "./out"}, {Name: "./gone/out", Typeflag: tar.TypeSymlink, Linkname: "/"}})
		writeImage(t, dir, "files.img", f)
		writeImage(t, dir, "remap-fpath.img", &remapfile.RemapFilePathEntry{OrigId: proto.Uint32(9), RemapId: proto.Uint32(1), RemapType: remapfile.RemapType_GHOST.Enum()})
		var damaged *DamagedError
		if err := Made(os.DirFS(dir), local(t, rootfs, nil), &specs.Spec{}); errors.As(err, &damaged) != bad || err != nil && !bad || bad && damaged.Rule != deletedRule {
			t.Errorf("%s: %v", name, err)
		}
	}
}
