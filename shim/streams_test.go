package shim

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/shim/worker"
)

// TestGiveStreams gives streams to who has none, and leaves those alone that are there.
func TestGiveStreams(t *testing.T) {
	for _, test := range []struct {
		name                  string
		terminal              bool
		stdin, stdout, stderr string
		want                  [3]string // "pipe" and "output": in the bundle
	}{
		{name: "none", want: [3]string{"pipe", "output", "output"}},
		{name: "terminal", terminal: true},
		{name: "log", stdout: "file:///log", stderr: "file:///log", want: [3]string{"pipe", "file:///log", "file:///log"}},
		{name: "all", stdin: "/in", stdout: "/out", stderr: "/err", want: [3]string{"/in", "/out", "/err"}},
		{name: "input only", stdin: "/in", want: [3]string{"/in", "output", "output"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bundle := t.TempDir()
			r := &taskAPI.CreateTaskRequest{Terminal: test.terminal, Stdin: test.stdin, Stdout: test.stdout, Stderr: test.stderr}
			if err := giveStreams(r, bundle); err != nil {
				t.Fatal(err)
			}
			if test.want[0] == "pipe" {
				test.want[0] = filepath.Join(bundle, "stdin")
				if info, err := os.Stat(r.Stdin); err != nil || info.Mode() != os.ModeNamedPipe|0o600 {
					t.Errorf("standard input is %v, %v", info, err)
				}
			}
			if test.want[1] == "output" {
				test.want[1], test.want[2] = worker.OutputPipe(bundle), worker.OutputPipe(bundle)
				for _, name := range []string{worker.OutputPipe(bundle), filepath.Join(bundle, streamOut)} {
					if info, err := os.Stat(name); err != nil || info.Mode() != os.ModeNamedPipe|0o600 {
						t.Errorf("%s is %v, %v", name, info, err)
					}
				}
			}
			if got := [3]string{r.Stdin, r.Stdout, r.Stderr}; got != test.want {
				t.Errorf("streams are %v, want %v", got, test.want)
			}
			if err := takeStreams(bundle); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(bundle); len(left) > 0 || err != nil {
				t.Errorf("left are %v, %v", left, err)
			}
		})
	}
}

// TestHoldInput: standard input has no end before it is open for writing, however late that is.
func TestHoldInput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdin")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	closeLater := holdInput(path)
	read := make(chan string, 1)
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	go func() {
		content, _ := io.ReadAll(in)
		read <- string(content)
	}()
	closeLater()
	time.Sleep(50 * time.Millisecond)
	out, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // it is closed meanwhile, and the end comes with that of out
	if _, err := out.WriteString("typed"); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != "typed" {
		t.Errorf("%q was read", got)
	}
}

// TestWrites: a file is found that was opened in a mount namespace which is gone, where the kernel has another name for it.
func TestWrites(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	path := filepath.Join(dir, "stdin")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	defer holdOpen(path)()
	if writes(path) {
		t.Error("it is open for reading and writing, and is taken for open for writing")
	}
	var out *os.File
	if err := criu.InOwnMounts(func() (err error) {
		out, err = os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	name := func() string {
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", out.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	for deadline := time.Now().Add(5 * time.Second); name() == path && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // the namespace goes a moment after its thread
	}
	if name() == path {
		t.Fatal("the kernel names the file as ever: this tests nothing")
	}
	if !writes(path) {
		t.Errorf("%s, which is called %s now, is not found", path, name())
	}
}
