package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

// overlay is a mounted overlay file system.
type overlay struct{ lower, upper, root string }

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root to mount overlayfs")
	}
	t.Skip("needs root to mount overlayfs")
}

// mountOverlay mounts an empty upper directory over lower.
func mountOverlay(t testing.TB, lower string, options ...string) overlay {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	o := overlay{lower: lower, upper: filepath.Join(dir, "upper"), root: filepath.Join(dir, "root")}
	work := filepath.Join(dir, "work")
	for _, d := range []string{o.upper, o.root, work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data := append([]string{"lowerdir=" + lower, "upperdir=" + o.upper, "workdir=" + work}, options...)
	if err := unix.Mount("overlay", o.root, "overlay", 0, strings.Join(data, ",")); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("mount overlayfs with %v: %v", options, err)
		}
		t.Skipf("mount overlayfs with %v: %v", options, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(o.root, 0); err != nil {
			t.Errorf("unmount overlayfs: %v", err)
		}
	})
	return o
}

// transfer captures what changed in o, makes a layer of it and applies it to a fresh overlay over the same lower directory.
func transfer(t testing.TB, o overlay) overlay {
	t.Helper()
	ctx := context.Background()
	staging := filepath.Join(t.TempDir(), "staging")
	if err := CaptureRootFS(ctx, staging, o.upper); err != nil {
		t.Fatalf("Capture: %v", err)
	}
	var layer, again bytes.Buffer
	if err := DiffRootFS(ctx, &layer, o.lower, staging); err != nil {
		t.Fatalf("Diff: %v", err)
	}
	if err := DiffRootFS(ctx, &again, o.lower, staging); err != nil {
		t.Fatalf("Diff: %v", err)
	}
	if !bytes.Equal(layer.Bytes(), again.Bytes()) {
		t.Error("two layers of one directory differ")
	}
	to := mountOverlay(t, o.lower)
	if err := ApplyRootFS(ctx, to.root, &layer, plenty); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	return to
}

// describe tells everything of a tree that a process could see, by path.
func describe(t testing.TB, root string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	first := make(map[uint64]string) // inode -> path
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		fi, err := d.Info()
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		if name == "." || fi.Mode()&os.ModeSocket != 0 {
			return nil
		}
		s := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		s += time.Unix(st.Mtim.Sec, st.Mtim.Nsec).UTC().Format(" 2006-01-02T15:04:05.999999999")
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" %d %x", len(b), sha256.Sum256(b))
		case fi.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			s += " -> " + target
		case fi.Mode()&os.ModeDevice != 0:
			s += fmt.Sprintf(" %d", st.Rdev)
		}
		if !fi.IsDir() && st.Nlink > 1 {
			if _, ok := first[st.Ino]; !ok {
				first[st.Ino] = name
			}
			s += " same as " + first[st.Ino]
		}
		names, err := sysx.LListxattr(path)
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, x := range names {
			value, err := sysx.LGetxattr(path, x)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" %s=%x", x, value)
		}
		out[name] = s
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sameTree says whether two roots look the same from inside.
func sameTree(t testing.TB, want, got string) {
	t.Helper()
	a, b := describe(t, want), describe(t, got)
	for name, s := range a {
		if b[name] != s {
			t.Errorf("%s came back as\n\t%s instead of\n\t%s", name, b[name], s)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			t.Errorf("%s was not there", name)
		}
	}
}
