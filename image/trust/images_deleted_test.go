package trust

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"google.golang.org/protobuf/proto"
)

func TestDeleted(t *testing.T) {
	for name, bad := range map[string]bool{"/a": false, "/dir/a": false, "/dir/none/a": false, "/link/a": true, "/link/none/a": true, "/dir/back/a": true} {
		rootfs, dir := t.TempDir(), t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(rootfs, "dir"), 0o700), os.Symlink("/", filepath.Join(rootfs, "link")), os.Symlink("..", filepath.Join(rootfs, "dir/back"))); err != nil {
			t.Fatal(err)
		}
		f := reg(name)
		f.Id = proto.Uint32(9)
		image(t, dir, "files.img", f)
		image(t, dir, "remap-fpath.img", &remapfile.RemapFilePathEntry{OrigId: proto.Uint32(9), RemapId: proto.Uint32(1), RemapType: remapfile.RemapType_GHOST.Enum()})
		var damaged *DamagedError
		if err := Deleted(os.DirFS(dir), local(t, rootfs, nil)); errors.As(err, &damaged) != bad || err != nil && !bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}
