package library

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/integration/gputest"
)

// Most tests wait most of the time, so that some run side by side.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := errors.Join(flag.Set("test.parallel", "12"), os.Setenv(TestDriver, "1")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

const (
	mib     = 1 << 20
	patient = 60 * time.Second // for what takes milliseconds
)

var fakeDir, libraryPath = gputest.Bin("fakecuda"), gputest.Bin(File)

// rig is a host with fake devices, whose programs have the library.
type rig struct {
	*gputest.Host
	t *testing.T
}

// newRig makes devices of so many MiB. The largest piece has 4 MiB. The test runs beside others from here on.
func newRig(t *testing.T, sizes ...int) *rig {
	t.Helper()
	gputest.Need(t)
	t.Parallel()
	h := gputest.New(t, sizes...)
	h.Env = []string{"LD_PRELOAD=" + libraryPath, "CRYO_GPU_PIECE_BYTES=4194304"}
	return &rig{Host: h, t: t}
}

// app is a running fakeapp with the library.
type app struct {
	*gputest.App
	rig *rig
	t   *testing.T
}

// run starts a fakeapp and waits until it answers.
func (r *rig) run(flags ...string) *app {
	r.t.Helper()
	return &app{App: r.Run(flags...), rig: r, t: r.t}
}

// haste is how many times faster time passes for programs after [rig.hasten].
const haste = 5

// hasten makes time pass faster for programs that start later, for tests in which the library waits some seconds before it gives up.
func (r *rig) hasten() {
	r.t.Helper()
	path := compile(r.t, r.t.TempDir(), "haste.so", `
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = syscall(SYS_clock_gettime, clock, t);
	if (clock == CLOCK_MONOTONIC) {
		int64_t ns = (t->tv_sec * INT64_C(1000000000) + t->tv_nsec) * HASTE;
		*t = (struct timespec){ns / 1000000000, ns % 1000000000};
	}
	return r;
}
int nanosleep(const struct timespec *t, struct timespec *left)
{
	int64_t ns = (t->tv_sec * INT64_C(1000000000) + t->tv_nsec) / HASTE;
	return syscall(SYS_nanosleep, &(struct timespec){ns / 1000000000, ns % 1000000000}, left);
}
int poll(struct pollfd *files, nfds_t n, int ms) { return syscall(SYS_poll, files, n, ms > 0 ? (ms + HASTE - 1) / HASTE : ms); }
`, "-shared", "-fPIC", fmt.Sprintf("-DHASTE=%d", haste))
	r.Env = append(r.Env, "LD_PRELOAD="+path+":"+libraryPath)
}

// works fails the test unless all device memory can be reached and is as it was.
func (a *app) works() { a.t.Helper(); a.Does("check"); a.Does("ranges") }

// dial wakes the library and has it say who it is.
func (a *app) dial() (*Process, Hello) {
	a.t.Helper()
	p, err := Dial(a.t.Context(), a.PID)
	if err != nil {
		a.t.Fatalf("%v: %s", err, a.Stderr())
	}
	a.t.Cleanup(func() { _ = p.HangUp() })
	h, err := p.Hello()
	if err != nil {
		a.t.Fatal(err)
	}
	return p, h
}

// take has the program hand everything over.
func (a *app) take() ([]record.GPUPiece, []*os.File) {
	a.t.Helper()
	p, _ := a.dial()
	a.Must(p.Close(a.t.Context(), patient))
	pieces, files := a.given(p)
	a.Must(p.Part())
	a.Must(p.Release())
	a.Must(p.HangUp())
	return pieces, files
}

func (a *app) given(p *Process) ([]record.GPUPiece, []*os.File) {
	a.t.Helper()
	pieces, err := p.Table()
	a.Must(err)
	files, err := p.Give()
	a.Must(err)
	a.t.Cleanup(func() { closeFiles(files) })
	return pieces, files
}

// back gives everything back.
func (a *app) back(pieces []record.GPUPiece, files []*os.File) {
	a.t.Helper()
	p, h := a.dial()
	if h.State != Given {
		a.t.Fatalf("state %s", h.State)
	}
	a.Must(p.Attach(a.t.Context(), pieces, files))
	closeFiles(files)
	if left, err := p.Own(a.t.Context()); err != nil || left != 0 {
		a.t.Fatalf("%d pieces are not its own, %v", left, err)
	}
	a.Must(p.Open())
	a.Must(p.HangUp())
}

// whole waits until the library has seen that who talked to it is gone, and fails the test unless the gate is open then.
func (a *app) whole() {
	a.t.Helper()
	p, h := a.dial()
	if h.State != Whole {
		a.t.Fatalf("state %s", h.State)
	}
	a.Must(p.HangUp())
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
		to, err := os.CreateTemp(filepath.Join(r.Dir, r.Devices[device]), "mem-")
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = to.Close() })
		if err := unix.Flock(int(to.Fd()), unix.LOCK_SH); err != nil {
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
