package device

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/integration/gputest"
)

// step is one of those of a checkpoint and its way back.
type step struct {
	name string
	do   func(context.Context, *Helper, []int) ([]Outcome, error)
	held ProcessState // by what a failure leaves
}

var steps = []step{
	{"lock", func(ctx context.Context, c *Helper, pids []int) ([]Outcome, error) {
		return c.Lock(ctx, pids, time.Second)
	}, StateRunning},
	{"checkpoint", func(ctx context.Context, c *Helper, pids []int) ([]Outcome, error) { return c.Checkpoint(ctx, pids) }, StateLocked},
	{"restore", func(ctx context.Context, c *Helper, pids []int) ([]Outcome, error) { return c.Restore(ctx, pids, nil) }, StateCheckpointed},
	{"unlock", func(ctx context.Context, c *Helper, pids []int) ([]Outcome, error) { return c.Unlock(ctx, pids) }, StateLocked},
}

// rescue is what a client does with a new helper: it goes by states.
func rescue(t *testing.T, c *Helper, pids []int) {
	t.Helper()
	got, err := c.States(t.Context(), pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if got[pid] == StateCheckpointed {
			done(t)(c.Restore(t.Context(), []int{pid}, nil))
		}
		if got[pid] != StateRunning {
			done(t)(c.Unlock(t.Context(), []int{pid}))
		}
	}
	states(t, c, pids, StateRunning)
}

// TestEachCallFails has each call fail for each of three processes; the others' calls are made all the same.
func TestEachCallFails(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run("--processes", "3")
	for at, failing := range steps {
		for n := range a.PIDs {
			c := r.start()
			for _, s := range steps[:at] {
				done(t)(s.do(t.Context(), c, a.PIDs))
			}
			r.Order(failing.name + " " + string(rune('1'+n)) + " error 999")
			got, err := failing.do(t.Context(), c, a.PIDs)
			if err != nil {
				t.Fatalf("%s: %v", failing.name, err)
			}
			for i, o := range got {
				if want := map[bool]int{true: Unknown}[i == n]; o.Code != want {
					t.Errorf("%s: process %d: %+v, not %d", failing.name, i, o, want)
				}
			}
			states(t, c, a.PIDs[n:n+1], failing.held)
			rescue(t, c, a.PIDs)
			if err := c.Close(); err != nil {
				t.Errorf("%s: close: %v", failing.name, err)
			}
			a.Works()
		}
	}
}

// TestKilledAtEachCall has the helper die before, during and after each call for each of two processes.
func TestKilledAtEachCall(t *testing.T) {
	const slow = "slow 500"
	r := newRig(t, 1)
	a := r.Run("--processes", "2")
	// die reports whether the helper has died in a call. On a busy machine a call can end before its helper is killed.
	die := func(at int, n, how string) bool {
		c, s := r.start(), steps[at]
		for _, before := range steps[:at] {
			done(t)(before.do(t.Context(), c, a.PIDs))
		}
		r.Order(s.name + " " + n + " " + how)
		killed := make(chan struct{})
		if how == slow {
			go func() {
				defer close(killed)
				begun := false // the call
				for ; !begun && t.Context().Err() == nil; time.Sleep(time.Millisecond) {
					text, _ := os.ReadFile(filepath.Join(r.Dir, "orders")) // it may just be replaced
					begun = bytes.HasPrefix(text, []byte("#"))
				}
				_ = c.Kill()
			}()
		}
		_, err := s.do(t.Context(), c, a.PIDs)
		late := how == slow && err == nil
		if late {
			<-killed
		}
		var died *DiedError
		if !late && (!errors.As(err, &died) || !strings.Contains(died.How, "killed") || !errdefs.IsAborted(err)) {
			t.Fatalf("%s %s %s: %v", s.name, n, how, err)
		}
		if _, err := c.States(t.Context(), a.PIDs); !errors.As(err, &died) {
			t.Errorf("after that: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if how == slow {
			time.Sleep(500 * time.Millisecond) // what the driver had begun, it ends
		}
		rescue(t, r.start(), a.PIDs)
		a.Works()
		return !late
	}
	for at, s := range steps {
		for _, n := range []string{"1", "2"} {
			for _, how := range []string{"exit", "exit-after", slow} {
				for tries := 1; !die(at, n, how); tries++ {
					if tries == 10 {
						t.Fatalf("%s %s %s: never killed in time", s.name, n, how)
					}
				}
			}
		}
	}
}

func TestDriverThatHangsIsKilled(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run()
	c := r.start()
	hold(t, c, a.PIDs, StateLocked)
	r.Order("checkpoint 1 hang")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, func() {
		cancel()
		time.Sleep(100 * time.Millisecond)
		_ = c.Kill()
	})
	if _, err := c.Checkpoint(ctx, a.PIDs); !errors.As(err, new(*DiedError)) {
		t.Errorf("got %v", err)
	}
	rescue(t, r.start(), a.PIDs)
	a.Works()
}

// TestLeft has the helper end, by its client or by a signal, and the processes stay as they were: the next one brings them back.
func TestLeft(t *testing.T) {
	for name, end := range map[string]func(*Helper) error{
		"close":   (*Helper).Close,
		"hang up": func(c *Helper) error { return c.Channel.HangUp() },
		"SIGTERM": func(c *Helper) error { return syscall.Kill(c.PID(), syscall.SIGTERM) },
		"SIGHUP":  func(c *Helper) error { return syscall.Kill(c.PID(), syscall.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			a := r.Run("--processes", "2")
			c := r.start()
			hold(t, c, a.PIDs, StateCheckpointed)
			if err := end(c); err != nil {
				t.Fatal(err)
			}
			select {
			case <-c.Ended():
			case <-time.After(20 * time.Second):
				t.Error("it lives")
			}
			if err := c.Close(); err != nil {
				t.Errorf("closed again: %v", err)
			}
			next := r.start()
			states(t, next, a.PIDs, StateCheckpointed)
			rescue(t, next, a.PIDs)
			a.Works()
		})
	}
}

func TestStateErrorIsNone(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run("--processes", "2")
	c := r.start()
	r.Order("state 2 error 3")
	states(t, c, a.PIDs, StateRunning, StateNone)
	states(t, c, a.PIDs, StateRunning)
}

func TestNoHelper(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, path := range []string{"", filepath.Join(t.TempDir(), ProgramName)} {
		if _, err := StartHelper(t.Context(), path); !errors.Is(err, ErrNoHelper) || failure.Hint(err) == "" || !errdefs.IsFailedPrecondition(err) {
			t.Errorf("start %q: %v", path, err)
		}
		if _, err := ReadFacts(t.Context(), path); !errors.Is(err, ErrNoHelper) {
			t.Errorf("facts of %q: %v", path, err)
		}
	}
}

func TestHelperIsFoundInPath(t *testing.T) {
	t.Setenv("PATH", filepath.Dir(gputest.New(t, 64).Helper()))
	c, err := StartHelper(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestBadHelpers are programs that are no helper, or another version's.
func TestBadHelpers(t *testing.T) {
	for name, script := range map[string]string{
		"says nothing":       "exit 0",
		"dies":               "echo no >&2; exit 3",
		"another version":    `echo '{"hello":7}'; read x`,
		"something else":     "echo hello; read x",
		"a very long line":   "head -c 5000000 /dev/zero; read x",
		"two values":         `echo '{"hello":1} {}'; read x`,
		"an unknown field":   `echo '{"hello":1,"more":1}'; read x`,
		"its error in words": `echo '{"error":"no"}'; read x`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "bad")
			gputest.Script(t, path, "#!/bin/sh\n"+script+"\n")
			if c, err := StartHelper(t.Context(), path); err == nil {
				t.Errorf("started: %v", c)
			}
			if f, err := ReadFacts(t.Context(), path); err == nil {
				t.Errorf("facts %+v", f)
			}
		})
	}
}

// TestCancelledStart ends a helper whose driver takes too long.
func TestCancelledStart(t *testing.T) {
	r := newRig(t, 1)
	r.Order("init * hang always")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := StartHelper(ctx, r.helper); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := ReadFacts(ctx, r.helper); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("facts: %v", err)
	}
}

func TestBadDrivers(t *testing.T) {
	r := newRig(t, 1)
	refused := func(t *testing.T, helper string, fault Fault, code int, hint string) {
		t.Helper()
		_, start := StartHelper(t.Context(), helper)
		_, facts := ReadFacts(t.Context(), helper)
		for _, err := range []error{start, facts} {
			var d *UnusableError
			if !errors.As(err, &d) || d.Fault != fault || d.Code != code || !strings.Contains(d.Hint(), hint) || !errdefs.IsFailedPrecondition(err) {
				t.Errorf("got %v", err)
			}
		}
	}
	t.Run("fabric manager", func(t *testing.T) {
		r.Order("init * error 802 always")
		refused(t, r.helper, FaultRefused, 802, "nvidia-fabricmanager")
		r.Order()
	})
	t.Run("no device", func(t *testing.T) {
		refused(t, r.Helper("FAKECUDA_DIR="+t.TempDir()), FaultRefused, 100, "nvidia-smi")
	})
	t.Run("none", func(t *testing.T) {
		refused(t, r.Helper("LD_LIBRARY_PATH="+t.TempDir()), FaultAbsent, 0, "install")
	})
	t.Run("before 570", func(t *testing.T) {
		dir := t.TempDir()
		source := filepath.Join(dir, "old.c")
		text := "int cuInit(unsigned f) { return f; } int cuDriverGetVersion(int *v) { *v = 12070; return 0; } int cuGetErrorName(void) { return 1; }"
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), source).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		refused(t, r.Helper("LD_LIBRARY_PATH="+dir), FaultOld, 0, "580")
	})
	t.Run("without NVML", func(t *testing.T) {
		r := &rig{Host: r.Host, t: t, helper: r.Helper("FAKECUDA_DEVICES=")}
		c := r.start()
		var d *UnusableError
		if _, err := c.Facts(t.Context()); !errors.As(err, &d) || d.Call != "nvmlInit" {
			t.Errorf("got %v", err)
		}
		if _, err := c.States(t.Context(), []int{1}); err != nil {
			t.Errorf("after that: %v", err)
		}
	})
}

// TestSession keeps the terminal's signals, and the parent's end, away from the helper.
func TestSession(t *testing.T) {
	r := newRig(t, 1)
	c := r.start()
	group, err := syscall.Getpgid(c.PID())
	if err != nil || group != c.PID() {
		t.Errorf("group %d of %d, %v", group, c.PID(), err)
	}
}
