package runc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// TestDelete has a runc that fails where the cgroup is in use, and then knows the container still.
func TestDelete(t *testing.T) {
	dir := t.TempDir()
	runc := filepath.Join(dir, "runc")
	script := `#!/bin/sh
cd "${0%/*}"
case "$*" in
*delete*) [ ! -e busy ] && rm c/state.json ;;
esac
`
	if err := os.WriteFile(runc, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	c := Container{ID: "c", Runtime: &gorunc.Runc{Command: runc, Root: dir}}
	if err := c.Delete(t.Context()); err != nil {
		t.Errorf("runc knows no such container: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"c/state.json", "busy"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.Delete(short); err == nil {
		t.Error("it is not deleted, and there is no error")
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = os.Remove(filepath.Join(dir, "busy")) })
	if err := c.Delete(t.Context()); err != nil || c.Known() {
		t.Errorf("%v, known: %t", err, c.Known())
	}
}

// TestSweepRestore removes runc's directory of a killed restore, but neither one that another runc is at, nor a mount of another root file system.
func TestSweepRestore(t *testing.T) {
	root, bundle := t.TempDir(), t.TempDir()
	c := Container{ID: "c", Bundle: bundle, Runtime: &gorunc.Runc{Root: root}}
	made := filepath.Join(root, "c", criuRoot)
	for _, dir := range []string{made, filepath.Join(bundle, "rootfs")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	there := func() bool { _, err := os.Stat(made); return err == nil }
	sweep := func() {
		t.Helper()
		if err := c.SweepRestore(); err != nil {
			t.Error(err)
		}
	}
	other := exec.Command("sh", "-c", "echo; read line; true", "runc", "--root", root, "restore", "--detach", "c")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	// Start returns while the kernel still makes the new program: its words are not in /proc yet.
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if sweep(); !there() {
		t.Error("the directory of another runc was removed")
	}
	if err := errors.Join(in.Close(), other.Wait()); err != nil {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		if err := unix.Mount("none", made, "tmpfs", 0, ""); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(made, unix.MNT_DETACH) })
		if sweep(); !there() || !isMount(made) || !errdefs.IsAlreadyExists(c.Foreign()) {
			t.Errorf("the mount of another was removed, or is taken for ours: %v", c.Foreign())
		}
		if err := unix.Unmount(made, 0); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(filepath.Join(bundle, "rootfs"), made, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if sweep(); there() {
		t.Error("it is left")
	}
}
