package gpu

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childVariable makes the test binary a process with pages; its value names their kinds, see lay.
const childVariable = "CRYO_TEST_INTERRUPT_PAGES"

func TestMain(m *testing.M) {
	beforePrewarmed()
	if kinds, ok := os.LookupEnv(childVariable); ok {
		if err := haveThem(strings.Fields(kinds)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// haveThem maps a page of each kind and answers each line of its input with flag and lease of each.
func haveThem(kinds []string) error {
	var all [][]byte
	for _, kind := range kinds {
		page, err := lay(kind)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		all = append(all, page)
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var answer []string
		for i, page := range all {
			if kinds[i] == "short" {
				continue // reading it would be the end
			}
			answer = append(answer, fmt.Sprintf("%d/%d", binary.NativeEndian.Uint32(page[offsetFlag:]),
				binary.NativeEndian.Uint32(page[offsetLease:])))
		}
		fmt.Println(strings.Join(answer, " "))
	}
	return nil
}

// lay maps a page as the header does, or not quite.
func lay(kind string) ([]byte, error) {
	called, size, sharing := "cryo-interrupt", int64(pageSize), unix.MAP_SHARED
	content := make([]byte, pageSize)
	copy(content, magic)
	binary.NativeEndian.PutUint32(content[offsetVersion:], version)
	switch kind {
	case "good":
	case "magic":
		content[0]++
	case "version":
		content[offsetVersion]++
	case "empty":
		content = nil
	case "short":
		content, size = nil, 0
	case "name":
		called = "something-else"
	case "private":
		sharing = unix.MAP_PRIVATE
	default:
		return nil, fmt.Errorf("unknown kind")
	}
	fd, err := unix.MemfdCreate(called, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, err
	}
	if _, err := unix.Pwrite(fd, content, 0); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, sharing)
}

// child is a process with pages.
type child struct {
	t       *testing.T
	command *exec.Cmd
	lines   *bufio.Reader
	ask     func(string)
}

func start(t *testing.T, namespaces uintptr, kinds ...string) *child {
	t.Helper()
	needRoot(t)
	c := &child{t: t, command: exec.Command("/proc/self/exe")}
	c.command.Env = append(os.Environ(), childVariable+"="+strings.Join(kinds, " "))
	c.command.Stderr = os.Stderr
	c.command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	in, err := c.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.lines = bufio.NewReader(out)
	c.ask = func(line string) { fmt.Fprintln(in, line) }
	if err := c.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.command.Process.Kill()
		_ = c.command.Wait()
	})
	if line := c.read(); line != "ready" {
		t.Fatalf("the child says %q", line)
	}
	return c
}

func (c *child) read() string {
	c.t.Helper()
	watchdog := time.AfterFunc(30*time.Second, func() { _ = c.command.Process.Kill() })
	defer watchdog.Stop()
	line, err := c.lines.ReadString('\n')
	if err != nil {
		c.t.Fatalf("read from the child: %v", err)
	}
	return strings.TrimSpace(line)
}

// sees is what the child reads in its pages: flag/lease.
func (c *child) sees() string {
	c.t.Helper()
	c.ask("")
	return c.read()
}

func (c *child) pid() int { return c.command.Process.Pid }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root to open another process's mappings")
	}
	t.Skip("needs root to open another process's mappings")
}
