package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

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
