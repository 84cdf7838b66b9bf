package trust

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fh"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fsnotify"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	skunix "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-unix"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// TestRemaps: CRIU makes and unlinks deleted files where the container could do so itself, and nowhere else.
func TestRemaps(t *testing.T) {
	const ghost, linked = remapfile.RemapType_GHOST, remapfile.RemapType_LINKED
	readOnly := func(d *dump) {
		d.spec.Mounts[len(d.spec.Mounts)-1].Options = []string{"ro"}
		d.mounts[8].Flags = proto.Uint32(1)
	}
	user := func(d *dump) { d.spec.Process.User = specs.User{UID: 1000, GID: 1000} }
	type remap struct {
		name  string
		mount int32
		kind  remapfile.RemapType
		link  string // of linked ones
		mode  uint32 // of ghosts
		owner uint32
	}
	const link = "link_remap.50"
	for name, c := range map[string]struct {
		remap  remap
		change func(d *dump)
		words  string // empty: accepted
		grant  Grant  // that accepts it
	}{
		"deleted, own":                     {remap: remap{"/srv/a", 1, ghost, "", 0o644, 0}},
		"deleted, own tmpfs":               {remap: remap{"/dev/a", 7, ghost, "", 0o4755, 12}},
		"deleted, granted":                 {remap: remap{"/data/a", 9, ghost, "", 0o4755, 12}},
		"deleted, granted read-only":       {remap{"/data/a", 9, ghost, "", 0o644, 0}, readOnly, "cannot be written to", ""},
		"deleted, read-only in the images": {remap{"/data/a", 9, ghost, "", 0o644, 0}, func(d *dump) { d.mounts[8].Flags = proto.Uint32(1) }, "cannot be written to", ""},
		"deleted, in proc":                 {remap{"/proc/a", 2, ghost, "", 0o644, 0}, nil, "cannot be written to", ""},
		"deleted, on a device":             {remap{"/proc/keys", 4, ghost, "", 0o644, 0}, nil, "cannot be written to", ""},
		"deleted, no mount":                {remap{"/srv/a", 77, ghost, "", 0o644, 0}, nil, "there is not", ""},
		"deleted, path of another mount":   {remap{"/data/a", 1, ghost, "", 0o644, 0}, readOnly, "not at its own path", ""},
		"deleted, granted, own user's":     {remap{"/data/a", 9, ghost, "", 0o644, 1000}, user, "", ""},
		"deleted, granted, root's":         {remap{"/data/a", 9, ghost, "", 0o644, 0}, user, "user 0", Privileges},
		"deleted, granted, setuid":         {remap{"/data/a", 9, ghost, "", 0o4755, 1000}, user, "mode 4755", Privileges},
		"deleted, granted, root's, capabilities": {remap{"/data/a", 9, ghost, "", 0o644, 1000}, func(d *dump) {
			d.spec.Process.Capabilities = &specs.LinuxCapabilities{}
			d.creds.CapBnd = nil
			d.creds.CapPrm = nil
			d.creds.CapEff = nil
		}, "user 1000", Privileges},
		"linked, own":               {remap: remap{"/srv/a", 1, linked, "/srv/" + link, 0, 0}},
		"linked, parent":            {remap: remap{"/srv/a/b", 1, linked, "/" + link, 0, 0}},
		"linked, granted":           {remap{"/data/a", 9, linked, "/data/" + link, 0, 0}, nil, "where CRIU would unlink it", ""},
		"linked, granted read-only": {remap{"/data/a", 9, linked, "/data/" + link, 0, 0}, readOnly, "where CRIU would unlink it", ""},
		"linked, another name":      {remap{"/srv/a", 1, linked, "/srv/passwd", 0, 0}, nil, "not as a dump links files", ""},
		"linked, elsewhere":         {remap{"/srv/a", 1, linked, "/etc/" + link, 0, 0}, nil, "not as a dump links files", ""},
		"linked, on another mount":  {remap{"/data/a/b", 1, linked, "/data/a/" + link, 0, 0}, nil, "not at its own path", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			if c.change != nil {
				c.change(d)
			}
			file := func(id uint32, name string) *fdinfo.FileEntry {
				f := reg(name)
				f.Id, f.Reg.Id, f.Reg.MntId = &id, &id, &c.remap.mount
				return f
			}
			dir := d.write(t)
			files := []proto.Message{file(9, c.remap.name)}
			if c.remap.kind == linked {
				files = append(files, file(50, c.remap.link))
			}
			writeImage(t, dir, "files.img", files...)
			writeImage(t, dir, "remap-fpath.img", &remapfile.RemapFilePathEntry{OrigId: proto.Uint32(9), RemapId: proto.Uint32(50), RemapType: &c.remap.kind})
			writeImage(t, dir, "ghost-file-32.img", &ghostfile.GhostFileEntry{Uid: &c.remap.owner, Gid: &c.remap.owner, Mode: proto.Uint32(unix.S_IFREG | c.remap.mode)})
			err := reviewImages(os.DirFS(dir), d.spec, Policy{}, here)
			damaged := (*DamagedError)(nil)
			switch {
			case c.words == "":
				if err != nil {
					t.Error(err)
				}
			case c.grant != "":
				if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), c.words) {
					t.Errorf("got %v, want %q", err, c.words)
				}
				if err := reviewImages(os.DirFS(dir), d.spec, Policy{Allow: []Grant{c.grant}}, here); err != nil {
					t.Errorf("granted: %v", err)
				}
			case !errors.As(err, &damaged) || damaged.Rule != deletedRule || !strings.Contains(err.Error(), c.words):
				t.Errorf("got %v, want %q", err, c.words)
			}
		})
	}
}

// TestNested: a container has one namespace of each kind.
func TestNested(t *testing.T) {
	second := func(change func(ids *criucore.TaskKobjIdsEntry)) func(*testing.T, *dump, string) {
		return func(t *testing.T, d *dump, dir string) {
			ids := proto.CloneOf(d.ids)
			change(ids)
			writeImage(t, dir, "ids-7.img", ids)
		}
	}
	n := proto.Uint32(999)
	for name, change := range map[string]func(*testing.T, *dump, string){
		"mount":   second(func(ids *criucore.TaskKobjIdsEntry) { ids.MntNsId = n }),
		"pid":     second(func(ids *criucore.TaskKobjIdsEntry) { ids.PidNsId = n }),
		"user":    second(func(ids *criucore.TaskKobjIdsEntry) { ids.UserNsId = n }),
		"network": second(func(ids *criucore.TaskKobjIdsEntry) { ids.NetNsId = n }),
		"ipc":     second(func(ids *criucore.TaskKobjIdsEntry) { ids.IpcNsId = n }),
		"uts":     second(func(ids *criucore.TaskKobjIdsEntry) { ids.UtsNsId = n }),
		"cgroup":  second(func(ids *criucore.TaskKobjIdsEntry) { ids.CgroupNsId = n }),
		"time":    second(func(ids *criucore.TaskKobjIdsEntry) { ids.TimeNsId = n }),
		"none":    second(func(ids *criucore.TaskKobjIdsEntry) { ids.MntNsId = nil }),
		"of no process": func(t *testing.T, _ *dump, dir string) {
			writeImage(t, dir, "mountpoints-13.img", mount(1, 99, mnt.Fstype_DEVTMPFS, 0, "/", "/", "devtmpfs", ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := ordinaryDump(t)
			dir := d.write(t)
			change(t, d, dir)
			var damaged *DamagedError
			if err := reviewImages(os.DirFS(dir), d.spec, Policy{Allow: []Grant{All}}, here); !errors.As(err, &damaged) || damaged.Rule != nestedRule {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestMadeOutside: what CRIU makes on a mount of the host's for a container whose user is not root is in a directory to which that user may write, and it may read what CRIU watches.
func TestMadeOutside(t *testing.T) {
	source := t.TempDir()
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{{"all", 0o777}, {"roots", 0o755}, {"own", 0o700}, {"groups", 0o770}, {"hidden", 0o700}, {"hidden/all", 0o777}} {
		if err := errors.Join(os.Mkdir(filepath.Join(source, d.name), 0o700), os.Chmod(filepath.Join(source, d.name), d.mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chown(filepath.Join(source, "own"), 1000, 0), os.Chown(filepath.Join(source, "groups"), 0, 1001), os.Symlink("all", filepath.Join(source, "link"))); err != nil {
		t.Skip(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(source, "all/secret"), nil, 0o600), os.WriteFile(filepath.Join(source, "all/read"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	type may struct{ make, read bool }
	for name, may := range map[string]may{"all/a": {true, true}, "all/none/a": {true, true}, "roots/a": {false, true}, "roots/none/a": {false, true}, "own/a": {true, true}, "groups/a": {true, true}, "a": {false, true},
		"link/a": {false, false}, "hidden/all/a": {false, false}, "all/secret": {true, false}, "all/read": {true, true}, "own": {false, true}, "hidden": {false, false}} {
		for _, kind := range []string{"file", "socket", "watch"} {
			may := may.make && kind != "watch" || may.read && kind == "watch"
			d := ordinaryDump(t)
			d.spec.Process.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1001}}
			d.spec.Mounts[len(d.spec.Mounts)-1].Source = source
			f := reg("/data/" + name)
			f.Reg.MntId = proto.Int32(9)
			if kind == "socket" {
				f = &fdinfo.FileEntry{Type: fdinfo.FdTypes_UNIXSK.Enum(), Usk: &skunix.UnixSkEntry{Name: []byte("/data/" + name + "\x00")}}
			}
			if kind == "watch" {
				f = &fdinfo.FileEntry{Type: fdinfo.FdTypes_INOTIFY.Enum(), Ify: &fsnotify.InotifyFileEntry{Wd: []*fsnotify.InotifyWdEntry{{FHandle: &fh.FhEntry{Path: proto.String("/data/" + name)}}}}}
			}
			d.files = []*fdinfo.FileEntry{f}
			dir := d.write(t)
			writeImage(t, dir, "remap-fpath.img", &remapfile.RemapFilePathEntry{OrigId: proto.Uint32(1), RemapId: proto.Uint32(1), RemapType: remapfile.RemapType_GHOST.Enum()})
			images, at := os.DirFS(dir), local(t, t.TempDir(), d.spec)
			if err := Made(images, at, d.spec); (err == nil) != may {
				t.Errorf("%s %s: %v", kind, name, err)
			}
			if d.spec.Process.User.UID = 0; Made(images, at, d.spec) != nil {
				t.Errorf("%s %s: refused for root", kind, name)
			}
		}
	}
}
