package image

import (
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
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
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

func TestDiffRefusesNames(t *testing.T) {
	for _, name := range []string{".wh.x", ".wh..wh..opq"} {
		upper := t.TempDir()
		write(t, filepath.Join(upper, "d", name), "")
		if err := DiffRootFS(context.Background(), io.Discard, t.TempDir(), upper); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), fmt.Sprintf("%q", "d/"+name)) {
			t.Errorf("Diff of %s gives %v", name, err)
		}
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
