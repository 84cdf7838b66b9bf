package criu

import (
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

func TestParseMaps(t *testing.T) {
	const text = `55d0c0a00000-55d0c0a01000 r-xp 00000000 08:01 1310 /bin/program
7f0000000000-7f0000001000 rw-s 00000000 00:2a 77 /srv/data.db-shm
7f0000001000-7f0000002000 rw-s 00001000 00:2a 77 /srv/data.db-shm
7f0000002000-7f0000003000 r--s 00000000 00:01 1034 /memfd:a b (deleted)
7f0000003000-7f0000004000 rw-s 00000000 00:2a 78 /srv/two\012lines
7f0000004000-7f0000005000 rw-p 00000000 00:00 0 
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
7ffd00100000-7ffd00101000 rw-p 00000000 00:00 0 [anon:/a/b]
`
	want := []mapping{
		{"7f0000000000-7f0000001000", "00:2a:77", "/srv/data.db-shm"},
		{"7f0000002000-7f0000003000", "00:01:1034", "/memfd:a b (deleted)"},
		{"7f0000003000-7f0000004000", "00:2a:78", "/srv/two\nlines"},
	}
	if got := parseMaps(text); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestParseInformation(t *testing.T) {
	const text = "pos:\t0\nflags:\t02100002\nmnt_id:\t1143\nino:\t77\n" +
		"lock:\t1: POSIX  ADVISORY  READ  812 00:2a:77 128 128\nlock:\t2: FLOCK  ADVISORY  WRITE 812 00:2a:78 0 EOF\nlock:\t3: OFDLCK ADVISORY  WRITE -1 00:2a:79 0 EOF\n"
	got := parseInformation(text)
	if !got.writable || got.mount != 1143 || !slices.Equal(got.locks, []string{"00:2a:77"}) {
		t.Errorf("%+v", got)
	}
	for _, flags := range []string{"02100000", "012000000", "012000002", ""} { // for reading, and O_PATH
		if parseInformation("flags:\t" + flags + "\n").writable {
			t.Errorf("flags %s are writable", flags)
		}
	}
}

func TestParseSockets(t *testing.T) {
	const text = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01  1001 /run/a b.sock
0000000000000000: 00000003 00000000 00000000 0001 03  1002 /run/a b.sock
0000000000000000: 00000002 00000000 00010000 0001 01  1003 @abstract
0000000000000000: 00000002 00000000 00000000 0002 01  1004 /run/datagram
0000000000000000: 00000002 00000000 00000000 0001 01  1005
0000000000000000: 00000002 00000000 00010000 0005 01 1006 relative
`
	want := map[string]string{"1001": "/run/a b.sock", "1004": "/run/datagram", "1006": "relative"}
	if got := parseSockets(text); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParseRoot(t *testing.T) {
	const text = "10 9 0:1 / / rw - overlay overlay rw\n12 10 0:3 / /proc rw - proc proc rw\n14 10 0:4 / / rw shared:1 - tmpfs tmpfs rw\n"
	if got := parseRoot(text); got != 14 {
		t.Errorf("%d", got)
	}
}

// TestRestorableCheck looks through this process, with 100 descriptors, a FIFO among them that nobody reads, and then through the same with a socket that was renamed.
func TestRestorableCheck(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := unix.Open(fifo, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(held) })
	if f, err := openRegular(fifo); err == nil {
		_ = f.Close()
		t.Error("a FIFO was opened")
	}
	for range 100 {
		f, err := os.CreateTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "bound"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	own := []int{os.Getpid()}
	best := time.Hour
	for range 5 {
		start := time.Now()
		if err := CheckRestorable(own); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	t.Logf("%d descriptors: %s", len(descriptors(own[0])), best)
	if best > 10*time.Millisecond {
		t.Errorf("it took %s", best)
	}
	if os.Geteuid() != 0 {
		t.Skip("what a socket is bound to is shown to root only")
	}
	if err := os.Rename(filepath.Join(dir, "bound"), filepath.Join(dir, "renamed")); err != nil {
		t.Fatal(err)
	}
	if err := CheckRestorable(own); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a renamed socket: %v", err)
	}
}

// TestTree finds a child of this process, which has a network namespace of its own, and not this process's parent.
func TestTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces are root's")
	}
	for _, test := range []struct {
		flags uintptr
		rule  string
	}{{0, ""}, {unix.CLONE_NEWNET, RuleNested}} {
		child := exec.Command("sleep", "60")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: test.flags}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		tree := ProcessTree(os.Getpid())
		err := CheckRestorable(tree)
		_, _ = child.Process.Kill(), child.Wait()
		if tree[0] != os.Getpid() || !slices.Contains(tree, child.Process.Pid) || slices.Contains(tree, os.Getppid()) {
			t.Errorf("%v", tree)
		}
		rule := ""
		if err != nil {
			rule = failure.Of(err).Rule
		}
		if rule != test.rule {
			t.Errorf("%v, want %q", err, test.rule)
		}
	}
}
