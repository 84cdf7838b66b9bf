package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// program is the sandbox's.
var program = "/proc/self/exe"

// TestMain is the sandbox where it is told to be, with a review that may have a fault. It is a program of its own, without cgo, as cryo is: the C library makes
// other system calls for threads.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == ReviewCommand {
		spoken := os.Args[2]
		if os.Getenv(otherMessages) != "" {
			spoken = "0"
		}
		os.Exit(serve(spoken, faulty))
	}
	if withoutCgo() {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "sandbox")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "sandbox.test")
	build := exec.Command("go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// withoutCgo reports whether the test itself is a program as the sandbox needs it.
func withoutCgo() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "0"})
}

var sink [][]byte

// faults are what a review does that a hostile image has taken over, or whose code is wrong, by the host's name in the specification.
var faults = map[string]struct {
	words string // of the error
	do    func(c *caller)
}{
	"panics": {"panic: index out of range", func(*caller) { panic(errors.New("index out of range")) }},
	"loops": {"it takes longer", func(*caller) {
		for {
			sink = nil
		}
	}},
	"loops in threads": {"it takes longer", func(*caller) {
		for range 8 {
			go func() {
				for {
					sink = nil
				}
			}()
		}
		select {}
	}},
	"allocates": {"out of memory", func(*caller) {
		for {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			sink = append(sink, b)
		}
	}},
	"recurses": {"fatal error", func(*caller) {
		var f func(n int) int
		f = func(n int) int {
			var large [32 << 10]byte // few frames fill the stack
			large[n%len(large)] = 1
			return f(n+1) + int(large[0])
		}
		f(0)
	}},
	"waits": {"it takes longer", func(c *caller) { _, _ = c.socket.Read(make([]byte, 1)) }},
	"reads a file": {"bad system call", func(c *caller) {
		_, err := os.ReadFile("/etc/passwd")
		c.must(send(c.socket, result, []byte(`{"Err":"`+fmt.Sprint(err)+`"}`)))
	}},
	"writes a file":    {"bad system call", func(*caller) { _ = os.WriteFile("canary", nil, 0o600) }},
	"makes a socket":   {"bad system call", func(*caller) { _, _ = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0) }},
	"connects":         {"bad system call", func(*caller) { _, _ = net.Dial("unix", "/run/containerd/containerd.sock") }},
	"forks":            {"bad system call", func(*caller) { _, _, _ = unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0) }},
	"forks by clone3":  {"bad system call", func(*caller) { _, _, _ = unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0) }},
	"executes":         {"bad system call", func(*caller) { _ = unix.Exec("/bin/true", []string{"true"}, nil) }},
	"signals":          {"bad system call", func(*caller) { _ = unix.Kill(-1, unix.SIGKILL) }},
	"signals a thread": {"bad system call", func(*caller) { _, _, _ = unix.RawSyscall(unix.SYS_TGKILL, 2, 2, 9) }},
	"traces":           {"bad system call", func(*caller) { _ = unix.PtraceAttach(1) }},
	"becomes root":     {"bad system call", func(*caller) { _ = syscall.Setuid(0) }},
	"makes memory executable": {"bad system call", func(*caller) {
		_, _ = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	}},
	"shares memory": {"bad system call", func(*caller) {
		_, _ = unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	}},
	"says nothing":         {"exit status 0", func(*caller) { unix.Exit(0) }},
	"says what is no JSON": {"cannot mean", func(c *caller) { c.must(send(c.socket, result, []byte("{"))) }},
	"says nothing of it":   {"says nothing", func(c *caller) { c.must(send(c.socket, result, []byte("null"))) }},
	"says more":            {"unknown field", func(c *caller) { c.must(send(c.socket, result, []byte(`{"More":1}`))) }},
	"says an unknown kind": {"message of kind 99", func(c *caller) { c.must(send(c.socket, 99, nil)) }},
	"is not ready again":   {"message of kind 2", func(c *caller) { c.must(send(c.socket, unready, []byte("because"))) }},
	"says too long a message": {"a message of 4294967295 bytes", func(c *caller) {
		_, err := c.socket.Write([]byte{byte(result), 0xff, 0xff, 0xff, 0xff})
		c.must(err)
	}},
	"asks without end": {"it takes longer", func(c *caller) {
		for {
			c.exists("/proc/none")
		}
	}},
	"asks too long a question": {"it says too much", func(c *caller) { c.exists(strings.Repeat("a", 1<<20)) }},
	"says too much": {"it says too much", func(c *caller) {
		w := wanted{Grant: Mounts, What: make([]byte, 4<<20)}
		for {
			c.must(sendJSON(c.socket, request, w))
		}
	}},
	"asks for all grants": {"too much", func(c *caller) {
		for {
			c.must(sendJSON(c.socket, request, wanted{Grant: Mounts}))
		}
	}},
	"asks for an unknown grant": {"too much", func(c *caller) { c.must(sendJSON(c.socket, request, wanted{Grant: "host"})) }},
	"asks for a file":           {"it asks for \"../", func(c *caller) { c.read(readMessage{Name: []byte("../../../etc/passwd")}) }},
	"asks for another image":    {"it asks for \"core", func(c *caller) { c.read(readMessage{Name: []byte("core-1.img")}) }},
	"asks below zero":           {"it asks for", func(c *caller) { c.read(readMessage{Name: []byte("tmpfs-dev-1.tar.gz.img"), At: -1}) }},
	"asks for files":            {"it asks for files", func(c *caller) { _, _, _ = c.Look(Root, "etc") }},
}

// faulty is a review with a fault, or the review, or what tells of the process itself.
func faulty(o reviewOrder, c *caller) error {
	if fault, ok := faults[o.Spec.Hostname]; ok {
		fault.do(c)
		return nil
	}
	return review(o, c)
}

func example(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"core-1.img": "abcd", "tmpfs-dev-1.tar.gz.img": "abc"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func reviewedInSandbox(t *testing.T, ctx context.Context, dir string, spec *specs.Spec, p Policy) ([]Request, error) {
	t.Helper()
	s, err := OpenSandbox(program, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.ended()
	return s.Review(ctx, spec, p)
}

// TestFaults: whatever becomes of the review, the images are refused by a rule that has a name, within bounds, and nothing has changed.
func TestFaults(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(fault.words, "it takes") {
				defer func(d time.Duration) { patience = d }(patience)
				patience = 300 * time.Millisecond
			}
			if name == "says too much" {
				defer func(n int64) { maxSaid = n }(maxSaid)
				maxSaid = 8 << 20
			}
			dir := example(t)
			before := children(t)
			begin := time.Now()
			requests, err := reviewedInSandbox(t, t.Context(), dir, &specs.Spec{Hostname: name}, Policy{Allow: []Grant{All}})
			took := time.Since(begin)
			var damaged *DamagedError
			if !errors.As(err, &damaged) || damaged.Rule != rule || !errdefs.IsDataLoss(err) || len(requests) > 0 || !strings.Contains(err.Error(), fault.words) {
				t.Fatalf("%v, %v", err, requests)
			}
			t.Logf("%v after %s", err, took.Round(time.Millisecond))
			if took > patience+5*time.Second {
				t.Errorf("it took %s", took)
			}
			if after := children(t); after != before {
				t.Errorf("%d processes, and %d before", after, before)
			}
			var usage unix.Rusage
			if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &usage); err != nil || name == "allocates" && usage.Maxrss<<10 > memoryLimit+64<<20 {
				t.Errorf("it had %d MiB of memory (%v)", usage.Maxrss>>10, err)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 2 {
				t.Errorf("%v (%v)", entries, err)
			}
		})
	}
}

// children is how many processes this one has made that are there still.
func children(t *testing.T) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		if err == nil {
			n += len(strings.Fields(string(text)))
		}
	}
	return n
}

// TestConfined: the kernel says of each thread of the process that it is confined.
func TestConfined(t *testing.T) {
	dir := example(t)
	inherited, err := unix.Open("/dev/null", unix.O_RDWR, 0) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	s, err := OpenSandbox(program, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Review(t.Context(), &specs.Spec{}, Policy{}); err == nil {
		t.Fatal("an example passes")
	}
	proc := fmt.Sprintf("/proc/%d/", s.command.Process.Pid)
	threads, err := filepath.Glob(proc + "task/*/status")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%q (%v)", threads, err)
	}
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n", "Groups:\t \n", "Uid:\t18", "Gid:\t18"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: not %q:\n%s", file, want, text)
			}
		}
	}
	for _, ns := range []string{"mnt", "net", "pid", "ipc", "uts", "cgroup"} {
		own, ownErr := os.Readlink("/proc/self/ns/" + ns)
		its, err := os.Readlink(proc + "ns/" + ns)
		if own == its || err != nil || ownErr != nil {
			t.Errorf("%s is shared: %s (%v, %v)", ns, its, err, ownErr)
		}
	}
	if entries, err := os.ReadDir(proc + "root"); err != nil || len(entries) > 0 {
		t.Errorf("its root has %v (%v)", entries, err)
	}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		target, err := os.Readlink(proc + "fd/" + e.Name())
		if n, _ := strconv.Atoi(e.Name()); err != nil || n > socketFD && !strings.HasPrefix(target, "anon_inode:[event") {
			t.Errorf("descriptor %s is %s (%v)", e.Name(), target, err)
		}
	}
}

// otherMessages is a variable that has the sandbox take its starter for one of another release.
const otherMessages = "CRYO_TEST_OTHER_MESSAGES"

// TestOtherRelease: a sandbox of another release is no fault of the images, and says what to do.
func TestOtherRelease(t *testing.T) {
	dir := example(t)
	s, err := OpenSandbox(wrapped(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.ended()
	_, err = s.Review(t.Context(), &specs.Spec{}, Policy{})
	if err == nil || errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "install the programs of one release") {
		t.Error(err)
	}
}

// wrapped returns a program that is the sandbox with the variable otherMessages: the sandbox inherits no variables.
func wrapped(t *testing.T) string {
	t.Helper()
	sandbox, err := filepath.EvalSymlinks(program)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "wrapped")
	if err := os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\n%s=1 exec %q \"$@\"\n", otherMessages, sandbox), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCancelled: a review that is broken off ends at once, and is no fault of the images.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	time.AfterFunc(200*time.Millisecond, func() { cancel(why) })
	begin := time.Now()
	_, err := reviewedInSandbox(t, ctx, example(t), &specs.Spec{Hostname: "waits"}, Policy{})
	if !errors.Is(err, why) || errdefs.IsDataLoss(err) || time.Since(begin) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(begin))
	}
}

// TestSame: what the review says, it says through the sandbox too, byte by byte.
func TestSame(t *testing.T) {
	spec := &specs.Spec{}
	for name, write := range map[string]func(dir string) error{
		"empty": func(string) error { return nil },
		"damaged": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "inventory.img"), []byte("\x19\x43\x56\x54"), 0o600)
		},
		"unknown":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "\xff\nother"), nil, 0o600) },
		"link":      func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "core-1.img")) },
		"directory": func(dir string) error { return os.Mkdir(filepath.Join(dir, "core-1.img"), 0o700) },
		"FIFO":      func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "core-1.img"), 0o600) },
		"parent":    func(dir string) error { return os.Symlink("..", filepath.Join(dir, Parent)) },
		"no parent": func(dir string) error { return os.Symlink("none", filepath.Join(dir, Parent)) },
		"long": func(dir string) error {
			name := filepath.Join(dir, "core-1.img")
			return errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 64<<20+1))
		},
		"too much": func(dir string) (err error) {
			for _, name := range []string{"files", "pstree", "inventory", "tty-info", "filelocks"} {
				name = filepath.Join(dir, name+".img")
				err = errors.Join(err, os.WriteFile(name, []byte("\x19\x43\x56\x54aaaa"), 0o600), os.Truncate(name, 64<<20))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := example(t)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := write(dir); err != nil {
				t.Fatal(err)
			}
			want, wantErr := ReviewImages(os.DirFS(dir), spec, func(path string) bool {
				_, err := os.Stat(path)
				return err == nil
			})
			got, err := reviewedInSandbox(t, t.Context(), dir, spec, Policy{})
			if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("%v, not %v", got, want)
			}
			var a, b *DamagedError
			if !errors.As(err, &a) || !errors.As(wantErr, &b) || err.Error() != wantErr.Error() || a.Rule != b.Rule || a.File != b.File {
				t.Errorf("%v, not %v", err, wantErr)
			}
			t.Logf("%.200v", err)
		})
	}
}

// TestLook asks for files of the root file system and of a bind mount, whose names are no text.
func TestLook(t *testing.T) {
	rootfs, data := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Symlink("/et\xffc", filepath.Join(rootfs, "li\xfenk")), unix.Mkfifo(filepath.Join(data, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{Mounts: []specs.Mount{{Type: "bind", Source: data, Destination: "/data"}, {Type: "proc", Source: "/etc"}}}
	files, err := NewLocal(rootfs, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	c := conversation{files: files}
	for _, test := range []struct {
		look   look
		kind   uint32
		target string
	}{
		{look{Root, []byte("li\xfenk")}, unix.S_IFLNK, "/et\xffc"},
		{look{0, []byte("fifo")}, unix.S_IFIFO, ""},
		{look{0, []byte("../fifo")}, 0, ""},
		{look{1, []byte("passwd")}, 1, ""},
		{look{2, []byte("passwd")}, 1, ""},
		{look{-2, []byte("passwd")}, 1, ""},
	} {
		ours, theirs := pipes(t)
		c.sandbox = &Sandbox{socket: ours}
		b, err := json.Marshal(asked{Look: &test.look})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.reply(b); err != nil {
			t.Fatal(err)
		}
		_, b, err = receive(theirs, maxAnswer)
		var a answer
		if err = errors.Join(err, json.Unmarshal(b, &a)); err != nil || a.Kind != test.kind || string(a.Target) != test.target || (string(test.look.Within) == "../fifo") != (len(a.Err) > 0) {
			t.Errorf("%d %q: %+v (%v)", test.look.Mount, test.look.Within, a, err)
		}
	}
}

func pipes(t *testing.T) (*os.File, *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}
