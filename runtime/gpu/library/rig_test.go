package library

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec"
)

// Where what the tests run has been built; prerequisite says why it has not.
var (
	fakeDir, libraryPath string
	prerequisite         error
)

func TestMain(m *testing.M) {
	prerequisite = build()
	os.Exit(m.Run())
}

func build() error {
	if os.Geteuid() != 0 {
		return errors.New("not root: no descriptor can be taken from other processes")
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		return err
	}
	fakeDir, libraryPath = filepath.Join(root, "bin", "fakecuda"), filepath.Join(root, "bin", File)
	c := exec.Command("make", "-s", "fakecuda", "preload")
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", c, err, out)
	}
	return nil
}

// need skips the test on a laptop without a compiler, and fails it in CI.
func need(t *testing.T) {
	t.Helper()
	switch {
	case prerequisite == nil:
	case os.Getenv("CI") != "":
		t.Fatal(prerequisite)
	default:
		t.Skip(prerequisite)
	}
}

const (
	mib     = 1 << 20
	patient = 60 * time.Second // for what takes milliseconds
)

// rig is a host with fake devices.
type rig struct {
	t       *testing.T
	dir     string // FAKECUDA_DIR
	devices []string
	wrapper string   // starts programs; empty: nothing does
	env     []string // of programs, beside what all have
}

// newRig makes devices of so many MiB.
func newRig(t *testing.T, sizes ...int) *rig {
	t.Helper()
	need(t)
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "gpu")}
	for i, size := range sizes {
		uuid := fmt.Sprintf("GPU-%08x-0000-4000-8000-00000000000b", i+1) // NVML finds who has memory by it, in all processes
		r.devices = append(r.devices, uuid)
		r.write(filepath.Join(uuid, "total"), strconv.Itoa(size*mib))
	}
	r.order()
	t.Setenv(TestDriver, "1")
	return r
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// order replaces the orders, see integration/fakecuda.
func (r *rig) order(lines ...string) { r.t.Helper(); r.write("orders", strings.Join(lines, "\n")+"\n") }

// app is a running fakeapp with the library.
type app struct {
	rig    *rig
	t      *testing.T
	socket string
	pid    int
	ended  chan struct{}
}

// run starts a fakeapp and waits until it answers. The largest piece has 4 MiB.
func (r *rig) run(flags ...string) *app {
	r.t.Helper()
	a := &app{rig: r, t: r.t, socket: filepath.Join(r.t.TempDir(), "ask.sock"), ended: make(chan struct{})}
	program := filepath.Join(fakeDir, "program")
	args := []string{"--library-path", fakeDir + ":" + program, filepath.Join(program, "fakeapp"), "--quiet", "--socket", a.socket}
	args = append(append([]string{filepath.Join(program, "ld.so")}, args...), flags...)
	if r.wrapper != "" {
		args = append([]string{r.wrapper}, args...)
	}
	command := exec.Command(args[0], args[1:]...)
	command.Env = []string{"FAKECUDA_DIR=" + r.dir, "FAKECUDA_ORDERS=" + filepath.Join(r.dir, "orders"), "LD_PRELOAD=" + libraryPath, "CRYO_GPU_PIECE_BYTES=4194304"}
	command.Env = append(command.Env, r.env...)
	command.Dir = filepath.Dir(a.socket)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stderr, err := os.Create(a.socket + ".stderr")
	if err != nil {
		r.t.Fatal(err)
	}
	defer stderr.Close()
	command.Stderr = stderr
	if err := command.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		_ = command.Wait()
		close(a.ended)
	}()
	a.pid = command.Process.Pid
	r.t.Cleanup(a.kill)
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if got, err := a.ask("check", patient); err == nil && got.OK {
			return a
		}
		if time.Since(begin) > patient {
			r.t.Fatalf("fakeapp does not answer: %s", a.stderr())
		}
	}
}

func (a *app) kill() {
	_ = syscall.Kill(-a.pid, syscall.SIGKILL)
	<-a.ended
}

func (a *app) stderr() string {
	text, _ := os.ReadFile(a.socket + ".stderr")
	return string(text)
}

type appAnswer struct {
	OK    bool
	Error string
	State struct {
		Processes []struct {
			Rounds int
			Saved  int   // bytes of device memory, by the driver's last checkpoint
			Limits []int // of each device's context, bytes of a stack
		}
	}
}

func (a *app) ask(command string, timeout time.Duration) (appAnswer, error) {
	var got appAnswer
	c, err := net.Dial("unix", a.socket)
	if err != nil {
		return got, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return got, err
	}
	if _, err := fmt.Fprintln(c, command); err != nil {
		return got, err
	}
	line, err := bufio.NewReader(c).ReadBytes('\n') // a forked child may have the socket too
	if err != nil {
		return got, err
	}
	return got, json.Unmarshal(line, &got)
}

// does fails the test unless a command succeeds.
func (a *app) does(command string) appAnswer {
	a.t.Helper()
	got, err := a.ask(command, patient)
	if err != nil || !got.OK {
		a.t.Fatalf("fakeapp: %s: %+v, %v: %s", command, got, err, a.stderr())
	}
	return got
}

// works fails the test unless all device memory can be reached and is as it was.
func (a *app) works() { a.t.Helper(); a.does("check"); a.does("ranges") }

// waits fails the test if the program can reach its devices.
func (a *app) waits() {
	a.t.Helper()
	if got, err := a.ask("check", 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		a.t.Fatalf("fakeapp does not wait: %+v, %v", got, err)
	}
	a.does("count")
}

// dial wakes the library and has it say who it is.
func (a *app) dial() (*Process, Hello) {
	a.t.Helper()
	p, err := Dial(a.t.Context(), a.pid)
	if err != nil {
		a.t.Fatalf("%v: %s", err, a.stderr())
	}
	a.t.Cleanup(func() { _ = p.HangUp() })
	h, err := p.Hello()
	if err != nil {
		a.t.Fatal(err)
	}
	return p, h
}

// take has the program hand everything over.
func (a *app) take() ([]spec.GPUPiece, []*os.File) {
	a.t.Helper()
	p, _ := a.dial()
	a.must(p.Close(a.t.Context(), patient))
	pieces, files := a.given(p)
	a.must(p.Release())
	a.must(p.HangUp())
	return pieces, files
}

func (a *app) given(p *Process) ([]spec.GPUPiece, []*os.File) {
	a.t.Helper()
	pieces, err := p.Table()
	a.must(err)
	files, err := p.Give()
	a.must(err)
	a.t.Cleanup(func() { closeFiles(files) })
	return pieces, files
}

// back gives everything back.
func (a *app) back(pieces []spec.GPUPiece, files []*os.File) {
	a.t.Helper()
	p, h := a.dial()
	if h.State != Given {
		a.t.Fatalf("state %s", h.State)
	}
	a.must(p.Attach(a.t.Context(), pieces, files))
	closeFiles(files)
	if left, err := p.Own(a.t.Context()); err != nil || left != 0 {
		a.t.Fatalf("%d pieces are not its own, %v", left, err)
	}
	a.must(p.Open())
	a.must(p.HangUp())
}

func (a *app) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatalf("%v: %s", err, a.stderr())
	}
}

// whole waits until the library has seen that who talked to it is gone, and fails the test unless the gate is open then.
func (a *app) whole() {
	a.t.Helper()
	p, h := a.dial()
	if h.State != Whole {
		a.t.Fatalf("state %s", h.State)
	}
	a.must(p.HangUp())
	a.works()
}

// elsewhere makes the memory of files anew on a device, as a restore does.
func (r *rig) elsewhere(device int, files []*os.File) []*os.File {
	r.t.Helper()
	var moved []*os.File
	for _, f := range files {
		st, err := f.Stat()
		if err != nil {
			r.t.Fatal(err)
		}
		to, err := os.CreateTemp(filepath.Join(r.dir, r.devices[device]), "mem-")
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = to.Close() })
		if err := unix.Flock(int(to.Fd()), unix.LOCK_EX); err != nil {
			r.t.Fatal(err)
		}
		if _, err := io.Copy(to, io.NewSectionReader(f, 0, st.Size())); err != nil {
			r.t.Fatal(err)
		}
		moved = append(moved, to)
	}
	return moved
}

// links counts a process's descriptors whose links contain a text.
func links(t *testing.T, pid int, text string) int {
	t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range names {
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); err == nil && strings.Contains(link, text) {
			n++
		}
	}
	return n
}

func lines(t *testing.T, format string, args ...any) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf(format, args...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

func threads(t *testing.T, pid int) int {
	t.Helper()
	e, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// eventually waits for what another process does by itself.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > patient {
			t.Fatal("not in time: " + what)
		}
	}
}
