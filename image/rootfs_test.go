package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// plenty is more than any layer of these tests costs.
const plenty = 1 << 30

// must ends the test on an error of a preparation.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
}

// baseImage makes a small lower directory.
func baseImage(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"etc/passwd", "etc/conf.d/a", "etc/conf.d/b", "usr/lib/x.so", "usr/lib/deep/er/y", "var/log/old", "var/cache/1/2/3", "gone/1", "gone/2", "kept"} {
		write(t, filepath.Join(dir, name), "base "+name)
	}
	must(t, os.Symlink("usr/lib", filepath.Join(dir, "lib")), os.Symlink("/does/not/exist", filepath.Join(dir, "etc/dangling")), os.Symlink("/etc/none", filepath.Join(dir, "etc/absolute")))
	return dir
}

func TestTransfer(t *testing.T) {
	t.Parallel()
	acl := []byte("\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x06\x00\x05\x00\x00\x00\x04\x00\x05\x00\xff\xff\xff\xff\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x05\x00\xff\xff\xff\xff")
	capability := []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	tests := []struct {
		name    string
		options []string
		change  func(t *testing.T, root string)
	}{
		{"nothing", nil, func(*testing.T, string) {}},
		{"files", nil, func(t *testing.T, root string) {
			write(t, root+"/new/a/b/c", strings.Repeat("x", 3<<20))
			write(t, root+"/etc/passwd", "changed")
			must(t, os.Chmod(root+"/kept", 0o4751), os.Lchown(root+"/kept", 1000, 2000), os.Chmod(root+"/kept", 0o4751))
			must(t, os.Chtimes(root+"/etc/conf.d/a", time.Unix(1, 2), time.Unix(1234567890, 123456789)))
			must(t, os.Chmod(root+"/usr/lib", 0o1700|os.ModeSticky))
			write(t, root+"/"+strings.Repeat("long", 60)+"/"+strings.Repeat("name", 60), "")
			write(t, root+"/not\xffutf8/ü", "")
		}},
		{"deletions", nil, func(t *testing.T, root string) {
			must(t, os.RemoveAll(root+"/gone"), os.Remove(root+"/etc/dangling"), os.Remove(root+"/etc/absolute"), os.Remove(root+"/etc/conf.d/a"), os.Remove(root+"/lib"))
		}},
		{"directory made again", nil, func(t *testing.T, root string) {
			must(t, os.RemoveAll(root+"/usr/lib"), os.RemoveAll(root+"/gone"))
			write(t, root+"/usr/lib/deep/z", "new")
			must(t, os.Mkdir(root+"/gone", 0o711))
		}},
		{"kinds change places", nil, func(t *testing.T, root string) {
			must(t, os.Remove(root+"/lib"), os.RemoveAll(root+"/etc/conf.d"), os.Remove(root+"/kept"))
			write(t, root+"/lib/now/a/directory", "")
			write(t, root+"/etc/conf.d", "now a file")
			must(t, os.Symlink("gone", root+"/kept"))
		}},
		{"hard links", nil, func(t *testing.T, root string) {
			write(t, root+"/b/first", "shared")
			must(t, os.Link(root+"/b/first", root+"/a-second"), os.Link(root+"/b/first", root+"/c"), os.Link(root+"/etc/passwd", root+"/etc/passwd-"))
			must(t, os.Symlink("x", root+"/s1"), os.Link(root+"/s1", root+"/s2"))
		}},
		{"special files", nil, func(t *testing.T, root string) {
			must(t, unix.Mkfifo(root+"/fifo", 0o640), unix.Mknod(root+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mknod(root+"/loop", unix.S_IFBLK|0o660, int(unix.Mkdev(7, 300))))
			l, err := net.Listen("unix", root+"/socket")
			must(t, err)
			t.Cleanup(func() { l.Close() })
		}},
		{"attributes", nil, func(t *testing.T, root string) {
			write(t, root+"/a", "")
			must(t, unix.Setxattr(root+"/a", "user.text", []byte("v\x00\n="), 0), unix.Setxattr(root+"/kept", "user.empty", nil, 0), unix.Setxattr(root+"/etc", "user.dir", []byte("d"), 0))
			must(t, unix.Setxattr(root+"/a", "security.capability", capability, 0))
			must(t, unix.Setxattr(root+"/usr", "system.posix_acl_access", acl, 0))
			must(t, os.Mkdir(root+"/inherit", 0o755))
			write(t, root+"/inherit/before", "")
			must(t, unix.Setxattr(root+"/inherit", "system.posix_acl_default", acl, 0))
			write(t, root+"/inherit/after/x", "")
		}},
		{"holes", nil, func(t *testing.T, root string) {
			sparse := func(name string, size int64, data ...int64) {
				f, err := os.Create(root + "/" + name)
				must(t, err, f.Truncate(size))
				for _, at := range data {
					_, err := f.WriteAt([]byte("data at "+fmt.Sprint(at)), at)
					must(t, err)
				}
				must(t, f.Close(), os.Chmod(root+"/"+name, 0o4755), os.Chtimes(root+"/"+name, time.Unix(1, 2), time.Unix(1234567890, 123456789)))
			}
			must(t, os.Mkdir(root+"/"+strings.Repeat("d", 120), 0o755))
			sparse("all", 64<<20)
			sparse("short", 64<<10)
			sparse("short at the end", 8<<20, 0, 4<<20, 8<<20-1<<16)
			sparse(strings.Repeat("d", 120)+"/first", 32<<20, 0)
			sparse("last", 32<<20+17, 32<<20)
			sparse("many", 64<<20, 0, 1<<20, 3<<20, 3<<20+8192, 17<<20, 40<<20, 64<<20-20)
			must(t, os.Link(root+"/many", root+"/many again"), unix.Setxattr(root+"/many", "security.capability", capability, 0), unix.Setxattr(root+"/many", "user.x", []byte(" GNU.sparse.major=1\n"), 0))
			must(t, os.Chtimes(root+"/kept", time.Unix(1, 2), time.Unix(3, 4)), os.Truncate(root+"/kept", 9<<20))
		}},
		{"moved directories", []string{"redirect_dir=on"}, func(t *testing.T, root string) {
			must(t, os.Rename(root+"/usr/lib", root+"/usr/lib64"), os.Rename(root+"/var", root+"/moved"))
			write(t, root+"/usr/lib64/deep/new", "new in moved")
			must(t, os.Remove(root+"/moved/log/old"), os.Rename(root+"/moved/cache/1", root+"/one"))
			write(t, root+"/one/2/4", "")
			must(t, os.Mkdir(root+"/var", 0o700))
		}},
		{"data left below", []string{"metacopy=on,redirect_dir=on"}, func(t *testing.T, root string) {
			must(t, os.Chmod(root+"/kept", 0o600), os.Lchown(root+"/etc/passwd", 7, 7), os.Rename(root+"/etc/passwd", root+"/pw"))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := mountOverlay(t, baseImage(t), test.options...)
			test.change(t, o.root)
			to := transfer(t, o)
			sameTree(t, o.root, to.root)
			// A second generation must not lose anything either.
			sameTree(t, o.root, transfer(t, to).root)
		})
	}
}

// TestTransferRandom changes a rootfs at random, as a shell might.
func TestTransferRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var options []string
			if seed%2 == 1 {
				options = []string{"redirect_dir=on,metacopy=on"}
			}
			o := mountOverlay(t, baseImage(t), options...)
			r := rand.New(rand.NewPCG(seed, 2))
			for range 150 {
				change(t, r, o.root)
			}
			sameTree(t, o.root, transfer(t, o).root)
		})
	}
}

// change does one random thing; what cannot be done is not.
func change(t testing.TB, r *rand.Rand, root string) {
	var all []string
	for name := range describe(t, root) {
		all = append(all, name)
	}
	if len(all) == 0 {
		all = []string{"."}
	}
	// Map order is random on its own, the seed should not be.
	pick := func() string {
		best := all[0]
		at := r.Uint64()
		for _, name := range all {
			if hashed(name, at) < hashed(best, at) {
				best = name
			}
		}
		return filepath.Join(root, best)
	}
	fresh := filepath.Join(filepath.Dir(pick()), fmt.Sprintf("n%d", r.IntN(30)))
	switch r.IntN(11) {
	case 0, 1:
		content := bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(20000))
		// It may be a fifo, or a link that leads out.
		if f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o640); err == nil {
			_, _ = f.Write(content)
			f.Close()
		}
	case 2:
		_ = os.Mkdir(fresh, 0o750)
	case 3:
		_ = os.RemoveAll(pick())
	case 4, 5:
		_ = os.Rename(pick(), fresh)
	case 6:
		_ = os.Symlink("../x", fresh)
	case 7:
		_ = os.Link(pick(), fresh)
	case 8:
		_ = os.Lchown(pick(), r.IntN(9), r.IntN(9))
	case 9:
		_ = unix.Lsetxattr(pick(), "user.k", []byte{byte(r.Uint32())}, 0)
	case 10:
		_ = unix.Mkfifo(fresh, 0o600)
	}
}

func hashed(s string, h uint64) uint64 {
	for _, c := range []byte(s) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h ^ h>>29
}

func TestCaptureKeepsHoles(t *testing.T) {
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	f, err := os.Create(filepath.Join(src, "sparse"))
	must(t, err)
	_, err = f.WriteAt([]byte("end"), 1<<30)
	must(t, err, f.Close())
	must(t, CaptureRootFS(context.Background(), dst, src))
	fi, err := os.Stat(filepath.Join(dst, "sparse"))
	must(t, err)
	if blocks := fi.Sys().(*syscall.Stat_t).Blocks; fi.Size() != 1<<30+3 || blocks > 1024 {
		t.Errorf("the copy has %d bytes in %d blocks", fi.Size(), blocks)
	}
}

func TestCaptureErrors(t *testing.T) {
	src := t.TempDir()
	write(t, src+"/a/b", "x")
	busy := t.TempDir()
	write(t, busy+"/mine", "x")
	if err := CaptureRootFS(context.Background(), busy, src); !errors.Is(err, os.ErrExist) {
		t.Errorf("Capture to a directory in use gives %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dst := filepath.Join(t.TempDir(), "copy")
	if err := CaptureRootFS(ctx, dst, src); !errors.Is(err, context.Canceled) {
		t.Errorf("Capture without time gives %v", err)
	}
	if _, err := os.Lstat(dst); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Capture left %s: %v", dst, err)
	}
	if err := CaptureRootFS(context.Background(), dst, src+"/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Capture of nothing gives %v", err)
	}
}

func TestCaptureFullDisk(t *testing.T) {
	small := smallDisk(t)
	src := t.TempDir()
	write(t, src+"/big", strings.Repeat("x", 4<<20))
	err := CaptureRootFS(context.Background(), filepath.Join(small, "copy"), src)
	if failure.Hint(err) == "" || !errdefs.IsResourceExhausted(err) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Capture to a full disk gives %v", err)
	}
	if _, err := os.Lstat(filepath.Join(small, "copy")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Capture left something: %v", err)
	}
}

// smallDisk mounts a file system of 1 MiB.
func smallDisk(t testing.TB) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	return dir
}

func TestDiffRefusesNames(t *testing.T) {
	for _, name := range []string{".wh.x", ".wh..wh..opq"} {
		upper := t.TempDir()
		write(t, filepath.Join(upper, "d", name), "")
		if err := DiffRootFS(context.Background(), io.Discard, t.TempDir(), upper); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), fmt.Sprintf("%q", "d/"+name)) {
			t.Errorf("Diff of %s gives %v", name, err)
		}
	}
}

func TestApplyHostile(t *testing.T) {
	tests := []struct {
		name   string
		header tar.Header
	}{
		{"above", tar.Header{Typeflag: tar.TypeReg, Name: "../outside"}},
		{"absolute", tar.Header{Typeflag: tar.TypeReg, Name: "/outside"}},
		{"through a link", tar.Header{Typeflag: tar.TypeReg, Name: "link/outside"}},
		{"linked", tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "../../outside"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			root := filepath.Join(dir, "root")
			must(t, os.Mkdir(root, 0o755), os.Symlink(dir, root+"/link"))
			var b bytes.Buffer
			tw := tar.NewWriter(&b)
			must(t, tw.WriteHeader(&test.header), tw.Close())
			err := ApplyRootFS(context.Background(), root, &b, plenty)
			if _, statErr := os.Lstat(filepath.Join(dir, "outside")); !errors.Is(statErr, os.ErrNotExist) {
				t.Errorf("something was made outside (Apply gave %v)", err)
			}
		})
	}
}

// TestSparse has a file of 30 GiB that is almost a hole go through a layer: that is small, and GNU tar and the file system see the holes.
func TestSparse(t *testing.T) {
	upper := t.TempDir()
	f, err := os.Create(upper + "/sparse")
	must(t, err)
	for _, at := range []int64{1 << 20, 7 << 30, 30<<30 - 3} {
		_, err := f.WriteAt([]byte("end"), at)
		must(t, err)
	}
	must(t, f.Close())
	write(t, upper+"/after", "what follows")
	var layer bytes.Buffer
	must(t, DiffRootFS(context.Background(), &layer, "", upper))
	if layer.Len() > 64<<10 {
		t.Errorf("the layer has %d bytes", layer.Len())
	}
	look := func(root string) {
		t.Helper()
		f, err := os.Open(root + "/sparse")
		must(t, err)
		defer f.Close()
		var st unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &st))
		if st.Size != 30<<30 || st.Blocks > 64 {
			t.Errorf("it has %d bytes in %d blocks", st.Size, st.Blocks)
		}
		b := make([]byte, 3)
		for at, want := range map[int64]string{0: "\x00\x00\x00", 1 << 20: "end", 1<<20 + 3: "\x00\x00\x00", 7 << 30: "end", 30<<30 - 4: "\x00en", 30<<30 - 3: "end"} {
			if _, err := f.ReadAt(b, at); err != nil || string(b) != want {
				t.Errorf("at %d is %q, %v", at, b, err)
			}
		}
		after, err := os.ReadFile(root + "/after")
		if err != nil || string(after) != "what follows" {
			t.Errorf("after it is %q, %v", after, err)
		}
	}
	to := t.TempDir()
	must(t, ApplyRootFS(context.Background(), to, bytes.NewReader(layer.Bytes()), plenty))
	look(to)
	to = t.TempDir()
	cmd := exec.Command("tar", "-xC", to)
	cmd.Stdin = &layer
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	look(to)
}

// TestApplyDeep has an entry whose name would have a thousand directories made.
func TestApplyDeep(t *testing.T) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	must(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("d/", 1000) + "x"}), tw.Close())
	root := t.TempDir()
	err := ApplyRootFS(context.Background(), root, &b, plenty)
	if found, _ := os.ReadDir(root); !errdefs.IsDataLoss(err) || len(found) != 0 {
		t.Errorf("Apply gives %v and makes %v", err, found)
	}
}

// TestApplySparse tries files that claim a length which their tar does not hold; Go's writer would not write them.
func TestApplySparse(t *testing.T) {
	old := rawHeader('S', "s", 0, func(b []byte) {
		copy(b[386:], "20000000000\x0000000000000\x00")
		copy(b[483:], "20000000000\x00")
	})
	records := "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n22 GNU.sparse.name=so\n37 GNU.sparse.realsize=1099511627776\n"
	pax := rawHeader('x', "h", len(records), nil)
	pax = append(pax, append([]byte(records), make([]byte, 512-len(records))...)...)
	pax = append(pax, rawHeader('0', "s", 512, nil)...)
	pax = append(pax, append([]byte("1\n1099511627776\n0\n"), make([]byte, 512-18)...)...)
	forged := func(records, contents string) []byte {
		b := append(rawHeader('x', "h", len(records), nil), append([]byte(records), make([]byte, 512-len(records))...)...)
		b = append(b, rawHeader('0', "s", len(contents), nil)...)
		return append(b, append([]byte(contents), make([]byte, -len(contents)&511)...)...)
	}
	const version, length = "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n", "28 GNU.sparse.realsize=1000\n"
	full := func(s string) string { return s + strings.Repeat("\x00", 512-len(s)) }
	for name, layer := range map[string][]byte{"old": old, "pax": pax,
		"no version":  forged(length, full("0\n")),
		"no length":   forged(version, full("0\n")),
		"0.1":         forged("27 GNU.sparse.numblocks=0\n", full("0\n")),
		"negative":    forged(version+"26 GNU.sparse.realsize=-9\n", full("0\n")),
		"no map":      forged(version+length, ""),
		"half a map":  forged(version+length, full("9\n")),
		"many parts":  forged(version+length, full("4194305\n")),
		"beyond":      forged(version+length, full("1\n999\n2\n")+"ab"),
		"overlapping": forged(version+length, full("2\n0\n2\n1\n2\n")+"abcd"),
		"overflowing": forged(version+length, full("2\n0\n2\n500\n9223372036854775807\n")+"ab"),
		"another's":   forged(version+length, full("1\n0\n2\n")+"abc"),
	} {
		root := t.TempDir()
		err := ApplyRootFS(context.Background(), root, bytes.NewReader(append(layer, make([]byte, 1024)...)), plenty)
		if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "sparse") {
			t.Errorf("Apply of a sparse file (%s) gives %v", name, err)
		}
	}
}

// rawHeader is a tar header as it is on tape.
func rawHeader(kind byte, name string, size int, more func([]byte)) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], fmt.Sprintf("0000644\x000000000\x000000000\x00%011o\x0000000000000\x00        %c", size, kind))
	if kind == 'S' {
		copy(b[257:], "ustar  \x00")
	} else {
		copy(b[257:], "ustar\x0000")
	}
	if more != nil {
		more(b)
	}
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestApplyErrors(t *testing.T) {
	if err := ApplyRootFS(context.Background(), t.TempDir(), strings.NewReader(strings.Repeat("no tar", 200)), plenty); !errdefs.IsDataLoss(err) {
		t.Errorf("Apply of no tar gives %v", err)
	}
	var b bytes.Buffer
	upper := t.TempDir()
	write(t, upper+"/big", strings.Repeat("x", 4<<20))
	must(t, DiffRootFS(context.Background(), &b, "", upper))
	if err := ApplyRootFS(context.Background(), t.TempDir(), bytes.NewReader(b.Bytes()[:2<<20]), plenty); !errdefs.IsDataLoss(err) {
		t.Errorf("Apply of half a tar gives %v", err)
	}
	if err := ApplyRootFS(context.Background(), smallDisk(t), &b, plenty); !errdefs.IsResourceExhausted(err) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Apply to a full disk gives %v", err)
	}
}

// written is a layer of n entries.
func written(t *testing.T, n int, entry func(i int) *tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		if err := w.WriteHeader(entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	must(t, w.Close())
	return &b
}

// TestApplyCost refuses layers of a few bytes by which much work would be done, before it is.
func TestApplyCost(t *testing.T) {
	t.Parallel()
	dir := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o700} }
	file := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600} }
	const parts = 100
	sparse := fmt.Sprintf("%d\n", parts)
	for i := range parts {
		sparse += fmt.Sprintf("%d\n1\n", i<<20)
	}
	sparse += strings.Repeat("\x00", -len(sparse)&511) + strings.Repeat("x", parts)
	records := "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n" + "33 GNU.sparse.realsize=104857600\n"
	for name, test := range map[string]struct {
		layer *bytes.Buffer
		most  int64
		says  string
	}{
		"deep directories":    {written(t, 1000, func(i int) *tar.Header { return dir(strings.Repeat("a/", i+1)) }), 64 << 20, "of more than 128 names"},
		"many files":          {written(t, 1000, func(i int) *tar.Header { return file(fmt.Sprint(i)) }), 999 * 1536, "unpacked-size"},
		"many files, as many": {written(t, 1000, func(i int) *tar.Header { return file(fmt.Sprint(i)) }), 1000 * 1536, ""},
		"many files, deep": {written(t, 1000, func(i int) *tar.Header {
			if i < 100 {
				return dir(strings.Repeat("a/", i+1))
			}
			return file(strings.Repeat("a/", 100) + fmt.Sprint(i))
		}), 1000 * 1536, "unpacked-size"},
		"opaque directories, one in the other": {written(t, 4, func(i int) *tar.Header {
			return []*tar.Header{dir("a/"), dir("a/b/"), file("a/.wh..wh..opq"), file("a/b/.wh..wh..opq")}[i]
		}), 64 << 20, "does not follow its directory"},
		"an opaque directory twice": {written(t, 4, func(i int) *tar.Header {
			return []*tar.Header{dir("a/"), file("a/b"), dir("a/"), file("a/.wh..wh..opq")}[i]
		}), 64 << 20, "does not follow its directory"},
		"a link in the place of a directory": {written(t, 2, func(i int) *tar.Header {
			return []*tar.Header{dir("a/"), {Typeflag: tar.TypeSymlink, Name: "a", Linkname: "b"}}[i]
		}), 64 << 20, "in the place of a directory"},
		"small parts of a sparse file": {bytes.NewBuffer(slices.Concat(rawHeader('x', "h", len(records), nil), []byte(records), make([]byte, 512-len(records)),
			rawHeader('0', "s", len(sparse), nil), []byte(sparse), make([]byte, -len(sparse)&511), make([]byte, 1024))), 4096 * 99, "unpacked-size"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			err := ApplyRootFS(context.Background(), root, test.layer, test.most)
			if (err == nil) != (test.says == "") || err != nil && (!errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("it says %v", err)
			}
		})
	}
	deep := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(deep, strings.Repeat("a/", maxDepth)), 0o700))
	if err := DiffRootFS(context.Background(), io.Discard, "", deep); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Diff of a deep tree gives %v", err)
	}
	shallow, layer := t.TempDir(), new(bytes.Buffer)
	must(t, os.MkdirAll(filepath.Join(shallow, strings.Repeat("a/", maxDepth-1)), 0o700), DiffRootFS(context.Background(), layer, "", shallow), ApplyRootFS(context.Background(), t.TempDir(), layer, plenty))
}
