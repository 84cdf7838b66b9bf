package criu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDo calls a function in the namespace and gives its error. Afterwards the thread is where it was, and makes the next visit too: what it has started with Pdeathsig lives on.
func TestDo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may enter namespaces")
	}
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUTS}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = holder.Process.Kill() // it may have ended
		_ = holder.Wait()
	}()
	there := fmt.Sprintf("/proc/%d/ns/uts", holder.Process.Pid)
	var was string
	var thread int
	look := func() { was, thread = link(t, "/proc/thread-self/ns/uts"), unix.Gettid() }
	failed := errors.New("do")
	if err := InNamespace(unix.CLONE_NEWUTS, there, func() error { look(); return failed }); !errors.Is(err, failed) || err.Error() != "do" {
		t.Fatalf("gives %v", err)
	}
	if want := link(t, there); was != want {
		t.Errorf("it is called in %s, want %s", was, want)
	}
	first := thread
	if err := InNamespace(unix.CLONE_NEWUTS, "/proc/self/ns/uts", func() error { look(); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := link(t, "/proc/self/ns/uts"); was != want || thread != first {
		t.Errorf("afterwards it is in %s and thread %d, want %s and %d", was, thread, want, first)
	}
	if err := InNamespace(unix.CLONE_NEWIPC, there, func() error { return errors.New("it is called") }); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a namespace of another kind gives %v", err)
	}
	if err := InNamespace(unix.CLONE_NEWUTS, "/nowhere", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none gives %v", err)
	}
}

func link(t *testing.T, path string) string {
	t.Helper()
	to, err := os.Readlink(path)
	if err != nil {
		t.Error(err)
	}
	return to
}
