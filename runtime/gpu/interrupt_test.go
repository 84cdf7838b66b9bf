package gpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// raise raises for a minute.
func raise(pid int) (int, error) { return RaiseInterrupt(pid, time.Minute) }

func TestRaiseAndLower(t *testing.T) {
	for _, test := range []struct {
		name       string
		namespaces uintptr
		pages      []string
		n          int
		raised     string // flag/lease of each page
		lowered    string
	}{
		{name: "no page", pages: nil},
		{"a page", 0, []string{"good"}, 1, "1/60000", "0/60000"},
		{"several", 0, []string{"good", "good"}, 2, "1/60000 1/60000", "0/60000 0/60000"},
		{"in namespaces of its own", syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, []string{"good"}, 1, "1/60000", "0/60000"},
		{"memory of another name", 0, []string{"name"}, 0, "0/0", "0/0"},
		{"private memory", 0, []string{"private"}, 0, "0/0", "0/0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := start(t, test.namespaces, test.pages...)
			for range 2 { // raised twice, lowered twice: no harm
				if n, err := raise(c.pid()); n != test.n || err != nil {
					t.Fatalf("raised %d, %v; want %d", n, err, test.n)
				}
			}
			if got := c.sees(); got != test.raised {
				t.Errorf("raised: %q, want %q", got, test.raised)
			}
			for range 2 {
				if n, err := LowerInterrupt(c.pid()); n != test.n || err != nil {
					t.Fatalf("lowered %d, %v; want %d", n, err, test.n)
				}
			}
			if got := c.sees(); got != test.lowered {
				t.Errorf("lowered: %q, want %q", got, test.lowered)
			}
		})
	}
}

// Whatever a process does with its pages, the good ones work and the others are told by kind.
func TestHostilePages(t *testing.T) {
	many := slices.Repeat([]string{"good"}, maxPages+3)
	for _, test := range []struct {
		name  string
		pages []string
		n     int
		kind  error
	}{
		{"overwritten", []string{"magic", "good"}, 1, errdefs.ErrDataLoss},
		{"never written", []string{"empty", "good"}, 1, errdefs.ErrDataLoss},
		{"cut off", []string{"short", "good"}, 1, errdefs.ErrDataLoss},
		{"of another version", []string{"good", "version"}, 1, errdefs.ErrNotImplemented},
		{"too many", many, maxPages, errdefs.ErrResourceExhausted},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := start(t, 0, test.pages...)
			for name, act := range map[string]func(int) (int, error){"raise": raise, "lower": LowerInterrupt} {
				n, err := act(c.pid())
				if n != test.n || !errors.Is(err, test.kind) {
					t.Errorf("%s: %d, %v; want %d, kind %v", name, n, err, test.n, test.kind)
				}
			}
		})
	}
}

func TestLease(t *testing.T) {
	c := start(t, 0, "good")
	for _, test := range []struct {
		lease time.Duration
		want  string
	}{
		{10 * time.Second, "1/10000"},
		{time.Nanosecond, "1/1"},
		{-time.Second, "1/1"},
		{1 << 62, "1/4294967295"},
	} {
		if n, err := RaiseInterrupt(c.pid(), test.lease); n != 1 || err != nil {
			t.Fatalf("raised %d, %v", n, err)
		}
		if got := c.sees(); got != test.want {
			t.Errorf("lease %v: %q, want %q", test.lease, got, test.want)
		}
	}
}

// A client of containerd may have stopped the process before.
func TestStoppedProcess(t *testing.T) {
	c := start(t, 0, "good")
	if err := c.command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if n, err := raise(c.pid()); n != 1 || err != nil {
		t.Errorf("raised %d, %v", n, err)
	}
	if err := c.command.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := c.sees(); got != "1/60000" {
		t.Errorf("raised: %q", got)
	}
}

func TestGoneProcess(t *testing.T) {
	c := start(t, 0, "good")
	if err := c.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	info := unix.Siginfo{}
	if err := unix.Waitid(unix.P_PID, c.pid(), &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	none := func(what string, pid int) {
		t.Helper()
		for _, act := range []func(int) (int, error){raise, LowerInterrupt} {
			if n, err := act(pid); n != 0 || err != nil {
				t.Errorf("%s: %d, %v", what, n, err)
			}
		}
	}
	none("a zombie", c.pid())
	_ = c.command.Wait()
	none("gone", c.pid())
	none("no pid", -1)
	none("no pid", 0)
}

// What took the place of a page since /proc/PID/maps was read is not opened if it is no memory.
func TestForeignFile(t *testing.T) {
	needRoot(t)
	path := t.TempDir() + "/file"
	if err := os.WriteFile(path, make([]byte, pageSize), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	page, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(page) }()
	dir, err := unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	if _, err := memory(dir, mappingOf(t, page)); !errors.Is(err, errForeign) {
		t.Errorf("a file: %v, want %v", err, errForeign)
	}
}

// mappingOf says where a page of this process is.
func mappingOf(t *testing.T, page []byte) mapping {
	t.Helper()
	var m mapping
	if _, err := fmt.Sscanf(fmt.Sprintf("%p", page), "0x%x", &m.start); err != nil {
		t.Fatal(err)
	}
	m.end = m.start + uint64(len(page))
	return m
}
