package guard

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// random gives the same bytes each time.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b) // never fails
	return b
}

// fileTree makes all kinds of files that need no privilege. Its times have no fractions, which GNU tar's own format does not have.
func fileTree(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.MkdirAll(at("directory/empty"), 0o755))
	check(os.MkdirAll(at(strings.Repeat("deep/", 60)), 0o700))
	for i, n := range []int{0, 1, 511, 512, 513, 1<<16 - 1, 1 << 16, piece, 3*piece + 7} {
		check(os.WriteFile(at(fmt.Sprintf("directory/%d", i)), random(n), 0o640))
	}
	check(os.WriteFile(at(strings.Repeat("n", 150)), random(9), 0o604))
	check(os.WriteFile(at("odd\n name\xff"), random(10), 0o400))
	check(os.Link(at("directory/3"), at("hard")))
	check(os.Symlink("/etc/passwd", at("absolute")))
	check(os.Symlink(strings.Repeat("..", 60)+"up", at("up")))
	check(unix.Mkfifo(at("fifo"), 0o620))
	for name, parts := range map[string][]int64{"hole": {}, "end": {0}, "begin": {1 << 20}, "parts": {0, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30}} {
		f, err := os.Create(at(name))
		check(err)
		for _, part := range parts {
			_, err := f.WriteAt(random(5000), part)
			check(err)
		}
		if name != "begin" {
			check(f.Truncate(1 << 32))
		}
		check(f.Close())
	}
	check(os.Chmod(at("directory"), 0o1555))
	t.Cleanup(func() { _ = os.Chmod(at("directory"), 0o755) })
	walk(t, dir, func(path string) {
		moment := unix.Timespec{Sec: 1e9}
		check(unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{moment, moment}, unix.AT_SYMLINK_NOFOLLOW))
	})
	return dir
}

func walk(t *testing.T, dir string, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			f(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// describe tells what is in a directory, by relative paths.
func describe(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	first := map[uint64]string{}
	walk(t, dir, func(path string) {
		var s unix.Stat_t
		if err := unix.Lstat(path, &s); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(path, dir)
		if first[s.Ino] == "" {
			first[s.Ino] = name
		}
		mode := s.Mode
		size := s.Size
		if mode&unix.S_IFMT == unix.S_IFDIR {
			size = 0
		}
		fmt.Fprintf(&out, "%q %o %d:%d %d %v %d %q", name, mode, s.Uid, s.Gid, size, s.Mtim, s.Rdev, first[s.Ino])
		target, _ := os.Readlink(path)
		out.WriteString(target)
		if mode&unix.S_IFMT == unix.S_IFREG {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			spans, err := format.DataSpans(f, size)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range spans {
				b := make([]byte, x.Length)
				if _, err := f.ReadAt(b, x.Offset); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&out, " %d %d %x", x.Offset, x.Length, b[:min(len(b), 100)])
			}
			_ = f.Close()
		}
		out.WriteByte('\n')
	})
	return out.String()
}

func image(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := create(dir, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// same compares line by line.
func same(t *testing.T, want, got string) {
	t.Helper()
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			t.Fatalf("line %d:\nwant %.300s\ngot  %.300s", i, append(w, "", "")[min(i, len(w))], append(g, "", "")[min(i, len(g))])
		}
	}
}

func TestRoundTrip(t *testing.T) {
	dir := fileTree(t)
	moment := time.Unix(-5, 123456789) // what only ours keeps
	if err := os.Chtimes(filepath.Join(dir, "fifo"), time.Time{}, moment); err != nil {
		t.Fatal(err)
	}
	attr := unix.Setxattr(filepath.Join(dir, "hard"), "user.cryo", []byte("a\x00b\n"), 0)
	to := t.TempDir()
	if err := extract(to, bytes.NewReader(image(t, dir))); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(filepath.Join(to, "directory"), 0o755)
	same(t, describe(t, dir), describe(t, to))
	value := make([]byte, 10)
	n, err := unix.Getxattr(filepath.Join(to, "directory/3"), "user.cryo", value)
	if attr == nil && (err != nil || string(value[:n]) != "a\x00b\n") {
		t.Errorf("attribute is %q (%v)", value[:max(n, 0)], err)
	}
}

// gnuTar runs GNU tar as CRIU would.
func gnuTar(t *testing.T, args []string, in io.Reader) []byte {
	t.Helper()
	path, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("no tar")
	}
	cmd := exec.Command(path, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &complaint
	if err := cmd.Run(); err != nil || complaint.Len() > 0 {
		t.Fatalf("tar: %v: %s", err, complaint.String())
	}
	return out.Bytes()
}

// TestGNUTarReads has GNU tar restore an image, as a CRIU without this package does.
func TestGNUTarReads(t *testing.T) {
	dir, to := fileTree(t), t.TempDir()
	gnuTar(t, append(extractArgs[:len(extractArgs):len(extractArgs)], to), bytes.NewReader(image(t, dir)))
	defer os.Chmod(filepath.Join(to, "directory"), 0o755)
	same(t, describe(t, dir), describe(t, to))
}

// TestArchiveTarReads has archive/tar list an image, as the review of a snapshot does.
func TestArchiveTarReads(t *testing.T) {
	dir := fileTree(t)
	var want, got []string
	walk(t, dir, func(path string) { want = append(want, filepath.Join(".", strings.TrimPrefix(path, dir))) })
	for r := tar.NewReader(bytes.NewReader(unzip(t, image(t, dir)))); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, filepath.Clean(h.Name))
	}
	slices.Sort(want)
	slices.Sort(got)
	same(t, strings.Join(want, "\n"), strings.Join(got, "\n"))
}

// TestDamage cuts an image and changes bytes of it: no such image is taken for whole.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), random(100*i*i), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole := image(t, dir)
	for i := 0; i < len(whole); i += 1 + i/10 {
		if err := extract(t.TempDir(), bytes.NewReader(whole[:i])); err == nil {
			t.Errorf("cut to %d of %d bytes, it passes", i, len(whole))
		}
		if i >= 3 && i < 10 { // flags and time of gzip's header mean nothing
			continue
		}
		damaged := bytes.Clone(whole)
		damaged[i] ^= 6 // of a block's first byte, 5 bits mean nothing
		if err := extract(t.TempDir(), bytes.NewReader(damaged)); err == nil {
			t.Errorf("changed at %d of %d bytes, it passes", i, len(whole))
		}
	}
	// What comes after a tar's end must be nothing.
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(append(unzip(t, whole), "more"...))
	if err := errors.Join(err, z.Close(), extract(t.TempDir(), &b)); err == nil {
		t.Error("with more after its end, it passes")
	}
}

func unzip(t *testing.T, image []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	tar, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return tar
}

// fullWriter takes so many bytes.
type fullWriter int

func (w *fullWriter) Write(p []byte) (int, error) {
	if int(*w) < len(p) {
		return 0, unix.ENOSPC
	}
	*w -= fullWriter(len(p))
	return len(p), nil
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), random(12*piece), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := len(image(t, dir))
	for _, room := range []int{0, piece, 5 * piece, whole - 1} {
		w := fullWriter(room)
		if err := create(dir, &w); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("with room for %d bytes: %v", room, err)
		}
	}
}
