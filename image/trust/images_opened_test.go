package trust

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fifo"
	imagefs "github.com/checkpoint-restore/go-criu/v8/crit/images/fs"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

func local(t *testing.T, rootfs string, spec *specs.Spec) *Local {
	t.Helper()
	l, err := NewLocal(rootfs, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestOpened walks paths of a root file system with a proc at /proc, a tmpfs at /tmp, and a bind mount at /data.
func TestOpened(t *testing.T) {
	rootfs, data, dir := t.TempDir(), t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(rootfs, name) }
	err := errors.Join(os.Mkdir(at("dir"), 0o700), os.WriteFile(at("dir/file"), nil, 0o600), unix.Mkfifo(at("fifo"), 0o600), os.Symlink("/dir", at("link")), os.Symlink("../link", at("dir/again")),
		os.Symlink("loop", at("loop")), os.Symlink("/proc/self", at("self")), os.Symlink("/proc", at("kernel")), os.Symlink("../../../../etc", at("out")), os.Symlink("/tmp/hidden", at("hidden")), os.Mkdir(at("tmp"), 0o700), os.WriteFile(at("tmp/pipe"), nil, 0o600),
		unix.Mkfifo(filepath.Join(data, "fifo"), 0o600), os.WriteFile(filepath.Join(data, "file"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	writeImage(t, dir, "mountpoints-12.img", mount(1, 99, mnt.Fstype_OVERLAYFS, 0, "/", "/", "overlay", ""), mount(2, 1, mnt.Fstype_PROC, 0, "/", "/proc", "proc", ""),
		mount(3, 1, mnt.Fstype_TMPFS, 0, "/", "/tmp", "tmpfs", ""), mount(4, 1, mnt.Fstype_UNSUPPORTED, 0, "/", "/data", "ext4", "/data"))
	archive(t, filepath.Join(dir, "tmpfs-dev-3.tar.gz.img"), []tar.Header{{Name: "./", Typeflag: tar.TypeDir}, {Name: "./pipe", Typeflag: tar.TypeFifo}, {Name: "./same", Typeflag: tar.TypeLink, Linkname: "./pipe"},
		{Name: "./file", Typeflag: tar.TypeReg}, {Name: "./hidden", Typeflag: tar.TypeSymlink, Linkname: "/proc/thread-self/root"}, {Name: "./disk", Typeflag: tar.TypeBlock}})
	spec := &specs.Spec{Mounts: []specs.Mount{{Destination: "/data", Type: "bind", Source: data}}}
	for name, words := range map[string]string{
		"/dir/file":               "",
		"/link/file":              "",
		"/link/again/again/file":  "",
		"/dir":                    "is a directory",
		"/fifo":                   "is a FIFO",
		"/link":                   "is a link",
		"/none":                   "is not in the root file system",
		"/dir/file/more":          "is not in the root file system",
		"/loop/file":              "too many links",
		"/out/passwd":             "is not in the root file system",
		"/proc/1/status":          "",
		"/proc/1/root/etc/passwd": "leads out",
		"/proc/7/task/8/fd/9":     "leads out",
		"/proc/self/exe":          "leads out",
		"/self/cwd/x":             "leads to files of the kernel's",
		"/hidden/etc/passwd":      "leads to files of the kernel's",
		"/kernel/kmsg":            "leads to files of the kernel's",
		"/tmp/file":               "",
		"/tmp/pipe":               "is a FIFO",
		"/tmp/same":               "is a FIFO",
		"/tmp/disk":               "is a device",
		"/data/file":              "",
		"/data/fifo":              "is a FIFO",
		"/data/none":              "", // the host's
	} {
		f := reg(name)
		f.Id = proto.Uint32(9)
		writeImage(t, dir, "files.img", f)
		err := Opened(os.DirFS(dir), local(t, rootfs, spec), spec)
		var damaged *DamagedError
		if ok := errors.As(err, &damaged) && damaged.Rule == openedRule && strings.Contains(err.Error(), words); words == "" && err != nil || words != "" && !ok {
			t.Errorf("%s: %v, not %q", name, err, words)
		}
	}
}

// TestOpenedDevices has device nodes of a tmpfs open: those that the container may have, and others.
func TestOpenedDevices(t *testing.T) {
	rootfs, dir := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(rootfs, "dev"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeImage(t, dir, "mountpoints-12.img", mount(1, 99, mnt.Fstype_OVERLAYFS, 0, "/", "/", "overlay", ""), mount(3, 1, mnt.Fstype_TMPFS, 0, "/", "/dev", "tmpfs", ""))
	archive(t, filepath.Join(dir, "tmpfs-dev-3.tar.gz.img"), []tar.Header{{Name: "./null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, {Name: "./kmsg", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 11},
		{Name: "./same", Typeflag: tar.TypeLink, Linkname: "kmsg"}, {Name: "./fuse", Typeflag: tar.TypeChar, Devmajor: 10, Devminor: 229}, {Name: "./kvm", Typeflag: tar.TypeChar, Devmajor: 10, Devminor: 232},
		{Name: "./disk", Typeflag: tar.TypeBlock, Devmajor: 10, Devminor: 232}, {Name: "./tun", Typeflag: tar.TypeChar, Devmajor: 10, Devminor: 200}})
	ten, kmsg, number := int64(10), int64(1), int64(11)
	spec := &specs.Spec{Linux: &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/kvm", Type: "c", Major: 10, Minor: 232}, {Path: "/dev/tun", Type: "c", Major: 10, Minor: 200}}, Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
		{Access: "rwm"}, {Allow: true, Type: "c", Access: "m"}, {Allow: true, Type: "c", Major: &ten, Minor: new(int64(229)), Access: "rw"}, {Allow: true, Type: "c", Major: &kmsg, Minor: &number, Access: "m"},
		{Allow: true, Type: "c", Major: &ten, Minor: new(int64(232)), Access: "rwm"}, {Allow: true, Type: "c", Major: &ten, Minor: new(int64(200)), Access: "rwm"}}}}}
	for name, bad := range map[string]bool{"null": false, "kmsg": true, "same": true, "fuse": false, "kvm": false, "disk": true, "tun": false} {
		f := reg("/dev/" + name)
		f.Id, f.Reg.Mode = proto.Uint32(9), proto.Uint32(unix.S_IFCHR|0o600)
		if name == "disk" {
			f.Reg.Mode = proto.Uint32(unix.S_IFBLK | 0o600)
		}
		writeImage(t, dir, "files.img", f)
		if err := Opened(os.DirFS(dir), local(t, rootfs, spec), spec); (err != nil) != bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFIFOs has FIFOs that are opened as other files, which waits for ever.
func TestFIFOs(t *testing.T) {
	pipe := func(id uint32) *fdinfo.FileEntry {
		f := reg("/fifo")
		f.Id, f.Reg.Mode = proto.Uint32(id), proto.Uint32(unix.S_IFIFO|0o600)
		return f
	}
	named := func(id uint32) *fdinfo.FileEntry {
		return &fdinfo.FileEntry{Type: fdinfo.FdTypes_FIFO.Enum(), Id: proto.Uint32(5), Fifo: &fifo.FifoEntry{Id: proto.Uint32(5), PipeId: proto.Uint32(1), RegfId: &id}}
	}
	file := reg("/file")
	file.Id = proto.Uint32(3)
	for name, test := range map[string]struct {
		words string
		write func(dir string)
	}{
		"FIFO": {"", func(dir string) {
			writeImage(t, dir, "files.img", pipe(2), named(2))
			writeImage(t, dir, "fdinfo-2.img", &fdinfo.FdinfoEntry{Id: proto.Uint32(5), Type: fdinfo.FdTypes_FIFO.Enum()})
		}},
		"descriptor": {"opened as another kind", func(dir string) {
			writeImage(t, dir, "files.img", pipe(2), named(2))
			writeImage(t, dir, "fdinfo-2.img", &fdinfo.FdinfoEntry{Id: proto.Uint32(2), Type: fdinfo.FdTypes_REG.Enum()})
		}},
		"directory": {"opened as another kind", func(dir string) {
			writeImage(t, dir, "files.img", pipe(2), named(2))
			writeImage(t, dir, "fs-7.img", &imagefs.FsEntry{CwdId: proto.Uint32(2), RootId: proto.Uint32(3)})
		}},
		"path of a file": {"another kind of file", func(dir string) { writeImage(t, dir, "files.img", file, named(3)) }},
		"twice":          {"two open files", func(dir string) { writeImage(t, dir, "files.img", file, file) }},
		"ghost": {"of another kind", func(dir string) {
			writeImage(t, dir, "files.img", file)
			writeImage(t, dir, "remap-fpath.img", &remapfile.RemapFilePathEntry{OrigId: proto.Uint32(3), RemapId: proto.Uint32(1), RemapType: remapfile.RemapType_GHOST.Enum()})
			writeImage(t, dir, "ghost-file-1.img", &ghostfile.GhostFileEntry{Mode: proto.Uint32(unix.S_IFIFO)})
		}},
	} {
		dir := t.TempDir()
		r := imageReviewer{images: os.DirFS(dir)}
		test.write(dir)
		if err := r.paths(); test.words == "" && err != nil || test.words != "" && (err == nil || !strings.Contains(err.Error(), test.words)) {
			t.Errorf("%s: %v, not %q", name, err, test.words)
		}
	}
}

// TestOpenedCosts has names whose walking would take minutes: it is given up.
func TestOpenedCosts(t *testing.T) {
	const depth, files = 900, 2000
	rootfs, dir := t.TempDir(), t.TempDir()
	name := strings.Repeat("/a", depth)
	if err := os.MkdirAll(rootfs+name, 0o700); err != nil {
		t.Fatal(err)
	}
	writeImage(t, dir, "mountpoints-12.img", mount(1, 99, mnt.Fstype_OVERLAYFS, 0, "/", "/", "overlay", ""))
	var all []proto.Message
	for i := range files {
		f := reg(name)
		f.Id, f.Reg.Mode = proto.Uint32(uint32(i+1)), proto.Uint32(unix.S_IFDIR|0o700)
		all = append(all, f)
	}
	writeImage(t, dir, "files.img", all...)
	if err := Opened(os.DirFS(dir), local(t, rootfs, &specs.Spec{}), &specs.Spec{}); !errors.Is(err, errPaths) {
		t.Error(err)
	}
}
