package guard

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// TestAwait replaces a program by one that is being written, which the kernel does not execute: it is waited for, and refused if that takes too long.
func TestAwait(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	content, err := os.ReadFile("/bin/true")
	if err == nil {
		err = os.WriteFile(program, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := await(ctx, program, 0); err != nil {
		t.Errorf("one that is written: %v", err)
	}
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(program, os.O_WRONLY|os.O_CREATE, 0o755)
	if err == nil {
		_, err = f.Write(content)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(program).Run(); !errors.Is(err, unix.ETXTBSY) {
		t.Skipf("this kernel executes what is being written: %v", err)
	}
	if err := await(ctx, program, 100*time.Millisecond); !errdefs.IsUnavailable(err) {
		t.Errorf("one that is being written: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, func() { f.Close() })
	if err := await(ctx, program, 5*time.Second); err != nil {
		t.Errorf("one that was being written: %v", err)
	}
	if err := exec.Command(program).Run(); err != nil {
		t.Error(err)
	}
}
