package trust

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/creds"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// The tests whose names begin with TestCost have a review do what takes a small image a square of its length, if it is done as it comes.

// affordable fails unless do takes little time, and allocates at most so many bytes: some times as much as it does, and a part of what it took.
func affordable(t *testing.T, most uint64, do func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := processorTime(t)
	do()
	took := processorTime(t) - began
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > most || took > 10*time.Second {
		t.Errorf("it took %d MiB and %s", n>>20, took)
	}
}

// processorTime is how much of it this process has used. The machine's other work is not in it.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestCostGhosts: half a million records name one deleted file.
func TestCostGhosts(t *testing.T) {
	dir, id := t.TempDir(), proto.Uint32(1)
	f := reg("/gone")
	f.Id, f.Reg.Id = id, id
	writeImage(t, dir, "files.img", f)
	var remaps []proto.Message
	for range maxRecords - 1 {
		remaps = append(remaps, &remapfile.RemapFilePathEntry{OrigId: id, RemapId: id, RemapType: remapfile.RemapType_GHOST.Enum()})
	}
	writeImage(t, dir, "remap-fpath.img", remaps...)
	writeImage(t, dir, "ghost-file-1.img", &ghostfile.GhostFileEntry{Mode: proto.Uint32(unix.S_IFREG)})
	if err := appendTo(filepath.Join(dir, "ghost-file-1.img"), make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	affordable(t, 512<<20, func() {
		if o, err := openedIn(os.DirFS(dir)); err != nil || !o.deleted[1] {
			t.Errorf("%v, %v", o.deleted, err)
		}
	})
}

func appendTo(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// TestCostGroups: a process has as many groups as the specification.
func TestCostGroups(t *testing.T) {
	const groups = 1 << 17
	spec := &specs.Spec{Process: &specs.Process{NoNewPrivileges: true}}
	c := &creds.CredsEntry{}
	for i := range uint32(groups) {
		spec.Process.User.AdditionalGids = append(spec.Process.User.AdditionalGids, i)
		c.Groups = append(c.Groups, groups-1-i)
	}
	r := newImageReviewer(os.DirFS(t.TempDir()), spec, here)
	affordable(t, 512<<20, func() {
		for range 20 {
			r.ids(c)
		}
	})
	if len(r.requests) > 0 {
		t.Errorf("it asks for %v", r.requests)
	}
	c.Groups = append(c.Groups, groups)
	if r.ids(c); len(r.requests) != 1 {
		t.Errorf("a group that the specification does not have is not asked for")
	}
}

// TestCostMounts: thousands of mounts are at one path, others at long ones, and files are open by long paths.
func TestCostMounts(t *testing.T) {
	root := mount(1, 99, mnt.Fstype_OVERLAYFS, 0, "/", "/", "overlay", "")
	entries := []*mnt.MntEntry{root}
	for id := uint32(2); id < maxMounts; id++ {
		entries = append(entries, mount(id, id-1, mnt.Fstype_TMPFS, 0, "/", "/", "tmpfs", ""))
	}
	last := entries[len(entries)-1]
	deep := "/" + strings.TrimSuffix(strings.Repeat("a/", 1900), "/")
	below := mount(maxMounts, last.GetMntId(), mnt.Fstype_TMPFS, 0, "/", deep, "tmpfs", "")
	entries = append(entries, below)
	other := strings.Repeat("/b", 1900)
	affordable(t, 512<<20, func() {
		tree := newMountTree(root, entries)
		for range 20000 {
			if tree.at("/") != last || tree.at(other) != last {
				t.Fatal("a walk ends on another mount")
			}
		}
		if tree.at(deep) != below || tree.at(deep+"/x") != below || tree.at(deep[:len(deep)-2]) != last {
			t.Error("a walk to a mount ends on another")
		}
	})
}

// TestCostLinks: links of a tmpfs go up and down at the end of a long path.
func TestCostLinks(t *testing.T) {
	rootfs, dir := t.TempDir(), t.TempDir()
	writeImage(t, dir, "mountpoints-12.img", mount(1, 99, mnt.Fstype_OVERLAYFS, 0, "/", "/", "overlay", ""), mount(3, 1, mnt.Fstype_TMPFS, 0, "/", "/t", "tmpfs", ""))
	deep, headers := "", []tar.Header{}
	for range 1900 {
		deep += "a/"
		headers = append(headers, tar.Header{Name: deep, Typeflag: tar.TypeDir})
	}
	headers = append(headers, tar.Header{Name: deep + "up", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("../a/", 800) + "up"})
	archive(t, filepath.Join(dir, "tmpfs-dev-3.tar.gz.img"), headers)
	var all []proto.Message
	for i := range uint32(2000) {
		f := reg("/t/" + deep + "up/x")
		f.Id = proto.Uint32(i)
		all = append(all, f)
	}
	writeImage(t, dir, "files.img", all...)
	spec := &specs.Spec{}
	at := local(t, rootfs, spec)
	affordable(t, 4<<30, func() { // which is not held
		if err := Opened(os.DirFS(dir), at, spec); err == nil || !strings.Contains(err.Error(), "links") && !strings.Contains(err.Error(), "too long") {
			t.Errorf("it says %v", err)
		}
	})
}

// countingFS counts how often each file is opened.
type countingFS struct {
	fs.FS
	opened map[string]int
}

func (c countingFS) Open(name string) (fs.File, error) {
	c.opened[name]++
	return c.FS.Open(name)
}

// TestCostParams: thousands of mounts name one tmpfs, which is read once.
func TestCostParams(t *testing.T) {
	d := ordinaryDump(t)
	d.mounts = append(d.mounts, mount(20, 1, mnt.Fstype_TMPFS, 0, "/", "/run/x", "tmpfs", ""))
	for id := uint32(100); id < 1000; id++ {
		m := mount(id, 2, mnt.Fstype_TMPFS, 0, fmt.Sprintf("/f%d", id), paramsFile, "tmpfs", "")
		m.RootDev = proto.Uint32(20)
		d.mounts = append(d.mounts, m)
	}
	dir := d.write(t)
	archive(t, filepath.Join(dir, "tmpfs-dev-20.tar.gz.img"), []tar.Header{{Name: "./f100", Typeflag: tar.TypeReg}})
	c := countingFS{os.DirFS(dir), map[string]int{}}
	if _, err := ReviewImages(c, d.spec, here); err != nil {
		t.Fatal(err)
	}
	if n := c.opened["tmpfs-dev-20.tar.gz.img"]; n > 1 {
		t.Errorf("it is read %d times", n)
	}
}

// TestCostOptions refuses options of a mount that no kernel takes.
func TestCostOptions(t *testing.T) {
	d := ordinaryDump(t)
	d.mounts[6].Options = proto.String(strings.Repeat("mode=1,", 1000))
	if err := reviewImages(os.DirFS(d.write(t)), d.spec, Policy{}, here); err == nil || !strings.Contains(err.Error(), "options of") || !strings.Contains(err.Error(), "7000") {
		t.Errorf("it says %v", err)
	}
}

// TestCostTmpfs: what all images of tmpfs unpack to is bounded together, but for what they have uncompressed.
func TestCostTmpfs(t *testing.T) {
	defer func(n int64) { tmpfsFree = n }(tmpfsFree)
	tmpfsFree = 10 << 20
	dir := t.TempDir()
	for name, level := range map[string]int{"zeros": gzip.BestSpeed, "stored": gzip.NoCompression} {
		for i := range 3 {
			f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d", name, i)))
			if err != nil {
				t.Fatal(err)
			}
			z, err := gzip.NewWriterLevel(f, level)
			if err != nil {
				t.Fatal(err)
			}
			w := tar.NewWriter(z)
			if err := errors.Join(w.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 6 << 20}), write(w, make([]byte, 6<<20)), w.Close(), z.Close(), f.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, want := range map[string]int{"zeros": 1, "stored": 3} {
		var unpacked int64
		n := 0
		for i := range 3 {
			if _, err := entriesOf(os.DirFS(dir), fmt.Sprintf("%s-%d", name, i), &unpacked); err == nil {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d images are looked through, want %d", name, n, want)
		}
	}
}

func write(w *tar.Writer, data []byte) error {
	_, err := w.Write(data)
	return err
}
