package criu

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	remap "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	criutime "github.com/checkpoint-restore/go-criu/v8/crit/images/time"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// TestLeftovers makes what CRIU makes on a mount of the host's, and what others do: the former is removed when a restore has failed, and the latter stays.
func TestLeftovers(t *testing.T) {
	source, images := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(source, name) }
	const there, image0 = 7, 0x50
	deleted := time.Unix(1700000000, 123456000)
	names := []string{"/data/dir/file", "/data/was", "/data/other", "/data/deep/er/file", "/elsewhere/file"}
	var files, remaps []proto.Message
	for i, name := range names {
		id := uint32(i + 1)
		files = append(files, &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: &id, Reg: &regfile.RegFileEntry{Id: &id, Flags: proto.Uint32(0), Pos: proto.Uint64(0), Name: &name, MntId: proto.Int32(there),
			Fown: &fown.FownEntry{Uid: new(uint32), Euid: new(uint32), Signum: new(uint32), PidType: new(uint32), Pid: new(uint32)}}})
		remaps = append(remaps, &remap.RemapFilePathEntry{OrigId: &id, RemapId: proto.Uint32(image0 + id), RemapType: remap.RemapType_GHOST.Enum()})
		ghost := image(t, &ghostfile.GhostFileEntry{Uid: new(uint32), Gid: new(uint32), Mode: proto.Uint32(unix.S_IFREG | 0o4755),
			Mtim: &criutime.Timeval{TvSec: proto.Uint64(uint64(deleted.Unix())), TvUsec: proto.Uint64(123456)}})
		if err := os.WriteFile(filepath.Join(images, "ghost-file-5"+string(rune('0'+id))+".img"), append(ghost, "contents"...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mount := &mnt.MntEntry{Fstype: proto.Uint32(0), MntId: proto.Uint32(there), RootDev: proto.Uint32(1), ParentMntId: proto.Uint32(1), Flags: proto.Uint32(0), Root: proto.String("/"),
		Mountpoint: proto.String("/data"), Source: proto.String(""), Options: proto.String(""), ExtKey: proto.String("/data")}
	make := func(name string, mode os.FileMode, changed time.Time) error {
		err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), nil, 0o600), os.Chmod(at(name), mode))
		return errors.Join(err, os.Chtimes(at(name), changed, changed))
	}
	const setuid = 0o755 | os.ModeSetuid
	err := errors.Join(os.WriteFile(filepath.Join(images, "files.img"), image(t, files...), 0o600), os.WriteFile(filepath.Join(images, "remap-fpath.img"), image(t, remaps...), 0o600),
		os.WriteFile(filepath.Join(images, "mountpoints-5.img"), image(t, mount), 0o600), make("was", setuid, deleted))
	if err != nil {
		t.Fatal(err)
	}
	l, err := FindLeftovers(images, map[string]string{"/data": source})
	if err != nil {
		t.Fatal(err)
	}
	// CRIU's.
	err = errors.Join(make("dir/file", setuid, deleted), make("dir/file.cr.51.ghost", 0o600, time.Now()), make("deep/er/file", setuid, deleted), make("file.cr.54.ghost", 0o600, time.Now()), make("was.cr_link", setuid, deleted))
	// Others'.
	err = errors.Join(err, make("other", 0o755, deleted), make("dir/file.cr.99.ghost", 0o600, time.Now()), make("elsewhere", setuid, deleted))
	if err := errors.Join(err, l.Remove()); err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := filepath.WalkDir(source, func(path string, d os.DirEntry, err error) error {
		left = append(left, path[len(source):])
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"", "/dir", "/dir/file.cr.99.ghost", "/elsewhere", "/other", "/was"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, and not %q", left, want)
	}
}
