package worker

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// controlOf returns the control directory of a container with these variables.
func controlOf(t *testing.T, env ...string) *Control {
	t.Helper()
	c, err := ControlOf(&specs.Spec{Process: &specs.Process{Env: env}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestControlOf(t *testing.T) {
	if c := controlOf(t, "PATH=/bin", "CRYO_CONTROL_DIR="); c != nil {
		t.Errorf("a container that names none has %+v", c)
	}
	if c := controlOf(t, "SNAPSHOT_CONTROL_DIR=/b", "CRYO_CONTROL_DIR=/a"); c == nil || c.Dir != "/a" || c.Ready != "ready" {
		t.Errorf("got %+v", c)
	}
	if c := controlOf(t, "SNAPSHOT_CONTROL_DIR=/b"); c == nil || c.Dir != "/b" || c.Ready != "ready-for-snapshot" {
		t.Errorf("got %+v", c)
	}
	if _, err := ControlOf(&specs.Spec{Process: &specs.Process{Env: []string{"CRYO_CONTROL_DIR=run"}}}); !errdefs.IsInvalidArgument(err) || failure.Hint(err) == "" {
		t.Errorf("a relative path: %v", err)
	}
}

// TestControl plays a program that makes the directory later than cryo looks, and that is told of a restore.
func TestControl(t *testing.T) {
	onlyRoot(t)
	dir, pid := filepath.Join(t.TempDir(), "control"), os.Getpid()
	c := controlOf(t, "SNAPSHOT_CONTROL_DIR="+dir)
	if ready, err := c.IsReady(pid); ready || err != nil {
		t.Errorf("without a directory: %v, %v", ready, err)
	}
	changes := Unknown(&specs.Spec{Hostname: "new"})
	changes.Complete(nil, nil)
	if err := c.Restored(pid, changes); err != nil {
		t.Errorf("without a directory: %v", err)
	}
	fifo := filepath.Join(dir, "events")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Resumed(pid); err != nil {
		t.Errorf("a FIFO that nothing has open: %v", err)
	}
	events, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	if err := os.WriteFile(filepath.Join(dir, "ready-for-snapshot"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ready, err := c.IsReady(pid); !ready || err != nil {
		t.Errorf("ready: %v, %v", ready, err)
	}
	if err := c.Resumed(pid); err != nil {
		t.Error(err)
	}
	for range 2 { // the second replaces the files
		if err := c.Restored(pid, changes); err != nil {
			t.Error(err)
		}
	}
	lines := bufio.NewScanner(events)
	for _, want := range []string{"resumed", "restored ", "restored "} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Errorf("the program reads %q, want %s", lines.Text(), want)
		}
	}
	for _, file := range []string{"restored.json", "restore-complete"} {
		if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Mode() != 0o400 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	if all, _ := os.ReadDir(dir); len(all) != 4 {
		t.Errorf("the directory has %v", all)
	}
}

// TestControlHostile: what a program puts into its control directory is neither followed nor opened, nor waited for.
func TestControlHostile(t *testing.T) {
	onlyRoot(t)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(elsewhere, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		prepare func(dir string) error
		refused bool
	}{
		"a link for the file":      {func(dir string) error { return os.Symlink(elsewhere, filepath.Join(dir, "restored.json")) }, false},
		"a FIFO for the file":      {func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "restored.json"), 0o600) }, false},
		"a directory for the file": {func(dir string) error { return os.Mkdir(filepath.Join(dir, "restored.json"), 0o700) }, true},
		"a link for the FIFO":      {func(dir string) error { return os.Symlink(elsewhere, filepath.Join(dir, "events")) }, true},
		"a file for the FIFO":      {func(dir string) error { return os.WriteFile(filepath.Join(dir, "events"), nil, 0o600) }, true},
		"a device for the FIFO": {func(dir string) error {
			return unix.Mknod(filepath.Join(dir, "events"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		}, true},
		"a full FIFO": {func(dir string) error {
			fifo := filepath.Join(dir, "events")
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				return err
			}
			f, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { f.Close() })
			if err := f.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				return err
			}
			_, _ = f.Write(make([]byte, 1<<20))
			return nil
		}, false},
	} {
		dir := t.TempDir()
		if err := test.prepare(dir); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		changes := Unknown(&specs.Spec{})
		changes.Complete(nil, nil)
		err := controlOf(t, "CRYO_CONTROL_DIR="+dir).Restored(os.Getpid(), changes)
		if test.refused != (err != nil) || test.refused && (!errdefs.IsFailedPrecondition(err) || failure.Hint(err) == "") {
			t.Errorf("%s: %v", name, err)
		}
		if kept, _ := os.ReadFile(elsewhere); string(kept) != "kept" {
			t.Fatalf("%s: a file elsewhere is %q", name, kept)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := controlOf(t, "CRYO_CONTROL_DIR="+file).IsReady(os.Getpid()); err == nil {
		t.Error("a file is taken for a directory")
	}
}

func onlyRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
}
