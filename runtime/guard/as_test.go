package guard

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAs does what another process may do, and no more: it has another user, no capabilities, and a mount namespace of its own.
func TestAs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	dir := filepath.Join("/tmp", filepath.Base(t.TempDir())+"-as")
	own, roots := filepath.Join(dir, "own"), filepath.Join(dir, "roots")
	for _, d := range []string{dir, own, roots} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const user, group = 4711, 4712
	if err := os.Chown(own, user, group); err != nil {
		t.Fatal(err)
	}
	sleep := exec.CommandContext(t.Context(), "sleep", "1000")
	sleep.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: group}, Unshareflags: syscall.CLONE_NEWNS}
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	write := func(path string) error {
		return As(sleep.Process.Pid, func() error {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		})
	}
	if err := write(filepath.Join(own, "file")); err != nil {
		t.Error(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(own, "file"), &st); err != nil || st.Uid != user || st.Gid != group {
		t.Errorf("the file is of %d:%d (%v)", st.Uid, st.Gid, err)
	}
	if err := write(filepath.Join(roots, "file")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file in a directory of root's: %v", err)
	}
	if err := os.WriteFile(filepath.Join(roots, "here"), nil, 0o600); err != nil {
		t.Errorf("this process is not root any more: %v", err)
	}
	if err := As(1<<22, func() error { return nil }); err == nil {
		t.Error("a process is impersonated that there is not")
	}
}
