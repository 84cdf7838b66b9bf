package device

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/gputest"
)

// nodes begin the paths of device nodes that stand for the driver's: those of memory, of which private mappings of /dev/zero show their path.
const nodes = "/dev/zero"

// parent is the program of TestDisown's processes: it opens and maps device nodes, and then starts children. What it prints is [family] as JSON. It ends with its standard input.
const parentEnv = "CRYO_TEST_PARENT"

// nvmlEnv is a file that it maps as well: the processes have loaded NVML.
const nvmlEnv = "CRYO_TEST_NVML"

// family are the processes of parent.
type family struct {
	Parent, Child, VFork, Sharing int
	Own                           int     // has opened the device node again by the same number
	Address                       uintptr // of the mapping
	Descriptor                    int
}

func init() {
	if os.Getenv(parentEnv) == "" {
		return
	}
	runtime.LockOSThread()
	f := family{Parent: os.Getpid()}
	must := func(r uintptr, _ uintptr, code syscall.Errno) uintptr {
		if code != 0 {
			panic(code)
		}
		return r
	}
	path, _ := unix.BytePtrFromString(nodes)
	f.Descriptor = int(must(unix.RawSyscall6(unix.SYS_OPENAT, 0, uintptr(unsafe.Pointer(path)), unix.O_RDWR|unix.O_CLOEXEC, 0, 0, 0)))
	f.Address = must(unix.RawSyscall6(unix.SYS_MMAP, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE, uintptr(f.Descriptor), 0))
	if name, err := unix.BytePtrFromString(os.Getenv(nvmlEnv)); err == nil && *name != 0 {
		fd := must(unix.RawSyscall6(unix.SYS_OPENAT, 0, uintptr(unsafe.Pointer(name)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0))
		must(unix.RawSyscall6(unix.SYS_MMAP, 0, 1<<12, unix.PROT_READ, unix.MAP_PRIVATE, fd, 0))
	}
	for _, c := range []struct {
		flags uintptr
		pid   *int
	}{{0, &f.Child}, {unix.CLONE_FILES, &f.Sharing}, {0, &f.Own}} {
		pid, _, code := unix.RawSyscall6(unix.SYS_CLONE, c.flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if code != 0 {
			panic(code)
		}
		if pid == 0 { // as in a child of a process with threads: nothing but system calls
			unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
			if c.pid == &f.Own {
				fd, _, _ := unix.RawSyscall6(unix.SYS_OPENAT, 0, uintptr(unsafe.Pointer(path)), unix.O_RDWR|unix.O_CLOEXEC, 0, 0, 0)
				unix.RawSyscall(unix.SYS_DUP3, fd, uintptr(f.Descriptor), unix.O_CLOEXEC)
				unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
			}
			for {
				var ts = unix.Timespec{Sec: 0, Nsec: 20e6}
				unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
			}
		}
		*c.pid = int(pid)
	}
	_ = json.NewEncoder(os.Stdout).Encode(f)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func startFamily(t *testing.T, env ...string) (f family) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), append(env, parentEnv+"=yes")...)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// at returns the end of the line of the mapping that begins at an address, and where a descriptor leads.
func (f family) at(t *testing.T, pid int) (mapped, opened string) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		first, last, _ := strings.Cut(fields[0], "-")
		start, _ := strconv.ParseUint(first, 16, 64)
		end, _ := strconv.ParseUint(last, 16, 64)
		if uint64(f.Address) >= start && uint64(f.Address) < end {
			mapped = strings.Join(append(fields[1:2], fields[5:]...), " ")
		}
	}
	opened, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, f.Descriptor))
	return mapped, opened
}

// TestDisown takes inherited device files from a forked child, and from nothing else.
func TestDisown(t *testing.T) {
	f, other := startFamily(t), startFamily(t)
	s := newStopper(nil)
	s.prefix = nodes
	defer func() { _ = s.yield(t.Context()) }()
	all := []int{f.Child, f.Sharing, other.Parent, other.Child}
	if n, err := s.disown([]int{f.Parent}, all); err != nil || n != 2 {
		t.Fatalf("%d processes gave up device files (%v), want 2", n, err)
	}
	inert := "anon_inode:[eventfd]"
	for _, w := range []struct {
		of             family
		pid            int
		mapped, opened string
	}{
		{f, f.Parent, "rw-p " + nodes, nodes},
		{f, f.Child, "rw-p", inert},
		{f, f.Sharing, "rw-p", nodes}, // the table of descriptors is the parent's
		{other, other.Parent, "rw-p " + nodes, nodes},
		{other, other.Child, "rw-p " + nodes, nodes},
	} {
		if mapped, opened := w.of.at(t, w.pid); mapped != w.mapped || opened != w.opened {
			t.Errorf("process %d has %q and %q, want %q and %q", w.pid, mapped, opened, w.mapped, w.opened)
		}
	}
	if n, err := s.disown([]int{f.Parent}, all); err != nil || n != 0 {
		t.Errorf("%d processes gave up device files again (%v)", n, err)
	}
	for _, pid := range all {
		if n, _ := traced(pid); n != 0 {
			t.Errorf("%d threads of process %d are traced", n, pid)
		}
	}
}

// TestDisownNVML has children that have loaded NVML: of one that has opened device nodes itself nothing is taken, although it has a mapping where the holder has.
func TestDisownNVML(t *testing.T) {
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if err := os.WriteFile(library, make([]byte, 1<<12), 0o600); err != nil {
		t.Fatal(err)
	}
	f := startFamily(t, nvmlEnv+"="+library)
	gputest.Eventually(t, "a child has opened the device node again", func() bool { return !sharesFile(f.Own, f.Descriptor, f.Parent, []int{f.Descriptor}) })
	s := newStopper(nil)
	s.prefix = nodes
	defer func() { _ = s.yield(t.Context()) }()
	if n, err := s.disown([]int{f.Parent}, []int{f.Child, f.Own}); err != nil || n != 1 {
		t.Errorf("%d processes gave up device files (%v), want 1", n, err)
	}
	if mapped, opened := f.at(t, f.Child); mapped != "rw-p" || opened != "anon_inode:[eventfd]" {
		t.Errorf("the child has %q and %q", mapped, opened)
	}
	if mapped, opened := f.at(t, f.Own); mapped != "rw-p "+nodes || opened != nodes {
		t.Errorf("the child that has opened the node has %q and %q", mapped, opened)
	}
}

// TestDisownPassed leaves alone a process that has a device file from a holder, and runs another program: it may be memory that they share.
func TestDisownPassed(t *testing.T) {
	file, err := os.OpenFile(nodes, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("sleep", "100")
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	s := newStopper(nil)
	s.prefix = nodes
	if n, err := s.disown([]int{os.Getpid()}, []int{cmd.Process.Pid}); err != nil || n != 0 {
		t.Errorf("%d processes gave up device files (%v)", n, err)
	}
	if opened, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", cmd.Process.Pid)); opened != nodes {
		t.Errorf("it has %q", opened)
	}
}

// TestDisownWaiting looks into programs that wait in system calls of each kind when they are stopped: they go on waiting, and none sees an error that it did not see before.
func TestDisownWaiting(t *testing.T) {
	const script = `
import os, select, signal, sys, threading, time
fd = os.open("/dev/zero", os.O_RDWR)
r, w = os.pipe()
child = os.fork()
if child == 0:
    kind = sys.argv[1]
    os.close(w)
    handled = []
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
    began = time.monotonic()
    if kind == "read": out = os.read(r, 10)
    elif kind == "poll":
        p = select.poll(); p.register(r, select.POLLIN); out = p.poll(20000)
    elif kind == "select": out = select.select([r], [], [], 20)[0]
    elif kind == "epoll":
        e = select.epoll(); e.register(r, select.EPOLLIN); out = e.poll(20)
    elif kind == "sleep":
        time.sleep(1.0); out = b"1" if 0.99 < time.monotonic() - began < 5 else b""
    elif kind == "futex":
        l = threading.Lock(); l.acquire(); threading.Thread(target=lambda: (os.read(r, 1), l.release()), daemon=True).start(); l.acquire(); out = b"1"
    elif kind == "sigwait": out = signal.sigtimedwait([signal.SIGUSR2], 1.0) is None
    elif kind == "spin":
        out, n = b"", 0
        while not select.select([r], [], [], 0)[0]: n += 1
        out = b"1"
    os._exit(0 if out else 1)
print(os.getpid(), child, flush=True)
sys.stdin.read(1)
if sys.argv[1] not in ("sleep", "sigwait"): os.write(w, b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
`
	for _, kind := range []string{"read", "poll", "select", "epoll", "sleep", "futex", "sigwait", "spin"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("python3", "-c", script, kind)
			in, _ := cmd.StdinPipe()
			out, _ := cmd.StdoutPipe()
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = in.Close() })
			var parent, child int
			if _, err := fmt.Fscan(out, &parent, &child); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
			s := newStopper(nil)
			s.prefix = nodes
			if n, err := s.disown([]int{parent}, []int{child}); err != nil || n != 1 {
				t.Errorf("%d gave up device files: %v", n, err)
			}
			if err := s.yield(t.Context()); err != nil {
				t.Error(err)
			}
			_, _ = in.Write([]byte("x"))
			if err := cmd.Wait(); err != nil {
				t.Errorf("it has not waited as before: %v", err)
			}
		})
	}
}

// TestDisownEnded has children that end meanwhile, which is no error.
func TestDisownEnded(t *testing.T) {
	s := newStopper(nil)
	s.prefix = nodes
	defer func() { _ = s.yield(t.Context()) }()
	for range 50 {
		f := startFamily(t)
		go func() { _ = unix.Kill(f.Child, unix.SIGKILL) }()
		if n, err := s.disown([]int{f.Parent}, []int{f.Child, 1 << 22}); err != nil || n > 1 {
			t.Errorf("%d, %v", n, err)
		}
	}
}
