package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Where what the tests run has been built; prerequisite says why it has not.
var (
	fakeDir      string // bin/fakecuda
	helperPath   string
	prerequisite error
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "cryo-helper")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	prerequisite = build(dir)
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("not root: the helper may not look into other processes")
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		return err
	}
	fakeDir, helperPath = filepath.Join(root, "bin", "fakecuda"), filepath.Join(dir, Name)
	fake := exec.Command("make", "-s", "fakecuda")
	fake.Dir = root
	program := exec.Command("go", "build", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", helperPath, "./cmd/cryo-gpu-keeper")
	program.Dir, program.Env = root, append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	for _, c := range []*exec.Cmd{fake, program} {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c, err, out)
		}
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

const mib = 1 << 20

// rig is a host with fake devices, and the environment of its helpers.
type rig struct {
	t       *testing.T
	dir     string // FAKECUDA_DIR
	devices []string
}

// newRig makes devices of 64 MiB. All helpers that the test starts see them.
func newRig(t *testing.T, devices int) *rig {
	t.Helper()
	need(t)
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "gpu")}
	var list strings.Builder
	for i := range devices {
		uuid := fmt.Sprintf("GPU-%08x-0000-4000-8000-00000000000a", i+1)
		r.devices = append(r.devices, uuid)
		r.write(filepath.Join(uuid, "total"), fmt.Sprint(64*mib))
		fmt.Fprintf(&list, "%s %d Fake_H%d 9.0 %d\n", uuid, i, i, 64*mib)
	}
	r.write("devices", list.String())
	r.write("orders", "")
	t.Setenv("LD_LIBRARY_PATH", fakeDir)
	t.Setenv("FAKECUDA_DIR", r.dir)
	t.Setenv("FAKECUDA_DEVICES", filepath.Join(r.dir, "devices"))
	t.Setenv("FAKECUDA_ORDERS", filepath.Join(r.dir, "orders"))
	t.Setenv("FAKECUDA_LOG", filepath.Join(r.dir, "log"))
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

// order replaces the orders.
func (r *rig) order(lines ...string) { r.t.Helper(); r.write("orders", strings.Join(lines, "\n")+"\n") }

// files counts what is allocated on a device.
func (r *rig) files(device int) int {
	r.t.Helper()
	names, err := filepath.Glob(filepath.Join(r.dir, r.devices[device], "mem-*"))
	if err != nil {
		r.t.Fatal(err)
	}
	return len(names)
}

// start starts a helper.
func (r *rig) start() *Client {
	r.t.Helper()
	c, err := Start(r.t.Context(), helperPath)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Kill(); _ = c.Close() })
	return c
}

// app is a running fakeapp.
type app struct {
	t      *testing.T
	socket string
	pids   []int // of its processes, ascending
}

// answer is what fakeapp says.
type appAnswer struct {
	Life  string
	Count int
	OK    bool
	Error string
	State struct {
		Processes []struct {
			PID, Bytes, Ticks int
			Devices           []string
		}
	}
}

// run starts a fakeapp and waits until it answers.
func (r *rig) run(flags ...string) *app {
	r.t.Helper()
	a := &app{t: r.t, socket: filepath.Join(r.t.TempDir(), "ask.sock")}
	program := filepath.Join(fakeDir, "program")
	args := []string{"--library-path", fakeDir + ":" + program, filepath.Join(program, "fakeapp"), "--quiet", "--socket", a.socket}
	command := exec.Command(filepath.Join(program, "ld.so"), append(args, flags...)...)
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
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	r.t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		<-ended
	})
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if got, err := a.ask("check", time.Second); err == nil && got.OK {
			for _, p := range got.State.Processes {
				a.pids = append(a.pids, p.PID)
			}
			return a
		}
		if time.Since(begin) > 20*time.Second {
			text, _ := os.ReadFile(a.socket + ".stderr")
			r.t.Fatalf("fakeapp does not answer: %s", text)
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
	line, err := io.ReadAll(c)
	if err != nil {
		return got, err
	}
	return got, json.Unmarshal(line, &got)
}

// works fails the test unless all device memory can be reached and is as it was.
func (a *app) works() appAnswer {
	a.t.Helper()
	got, err := a.ask("check", 10*time.Second)
	if err != nil || !got.OK {
		a.t.Fatalf("fakeapp: %+v, %v", got, err)
	}
	return got
}

// waits fails the test if the device can be reached.
func (a *app) waits() {
	a.t.Helper()
	if got, err := a.ask("check", 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		a.t.Fatalf("fakeapp is not locked: %+v, %v", got, err)
	}
	if got, err := a.ask("count", 5*time.Second); err != nil || !got.OK {
		a.t.Fatalf("fakeapp does not run: %+v, %v", got, err)
	}
}

// done fails the test unless each call was.
func done(t *testing.T) func([]Outcome, error) {
	t.Helper()
	return func(outcomes []Outcome, err error) {
		t.Helper()
		if err != nil || slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Code != 0 }) {
			t.Fatalf("%+v, %v", outcomes, err)
		}
	}
}

// hold brings processes into a state.
func hold(t *testing.T, c *Client, pids []int, s State) {
	t.Helper()
	done(t)(c.Lock(t.Context(), pids, time.Second))
	if s == Checkpointed {
		done(t)(c.Checkpoint(t.Context(), pids))
	}
}

// states fails the test unless the processes are in these states.
func states(t *testing.T, c *Client, pids []int, want ...State) {
	t.Helper()
	got, err := c.States(context.Background(), pids)
	if err != nil {
		t.Fatal(err)
	}
	for i, pid := range pids {
		if got[pid] != want[min(i, len(want)-1)] {
			t.Fatalf("states %v of %v, want %v", got, pids, want)
		}
	}
}

// eventually waits for what is done by a process that nobody waits for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			t.Fatal("not within 20 s: " + what)
		}
	}
}
