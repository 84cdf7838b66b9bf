package checkpoint

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/runc"
)

// start starts a program, which ends with the test.
func start(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c
}

// onRelease does something when the container goes on.
type onRelease struct{ do func() }

func (h onRelease) Dumped(context.Context, Dumped) (Decision, error) { return Resume, nil }
func (h onRelease) Released(Result)                                  { h.do() }

// TestProcessesAreObserved has a process end right after the checkpoint has let it go on, waited for by its parent or not.
func TestProcessesAreObserved(t *testing.T) {
	for _, test := range []struct {
		name   string
		signal syscall.Signal
		lost   bool
	}{
		{"segmentation fault", syscall.SIGSEGV, true},
		{"no memory", syscall.SIGKILL, true},
		{"told to end", syscall.SIGTERM, false},
		{"runs on", 0, false},
	} {
		for _, waited := range []bool{true, false} {
			name := test.name
			if waited {
				name += ", waited for"
			}
			t.Run(name, func(t *testing.T) {
				c := start(t, "sleep", "1000")
				f := &fake{pids: []int{c.Process.Pid}}
				_, err := Run(t.Context(), f, Request{ID: "c", Devices: &model{}, Alive: func() bool { return true }, Dump: runc.Dump{Images: t.TempDir()}, Hold: onRelease{func() {
					if test.signal == 0 {
						return
					}
					if err := c.Process.Signal(test.signal); err != nil {
						t.Error(err)
					}
					if waited {
						_ = c.Wait() // it was ended by a signal
					}
				}}})
				if errors.Is(err, failure.ErrLost) != test.lost || !test.lost && err != nil {
					t.Fatalf("got %v", err)
				}
				if test.lost && !strings.Contains(err.Error(), "(sleep)") {
					t.Errorf("does not name the process: %v", err)
				}
			})
		}
	}
}

// TestEndOfOwnAccord has a process end with a status, as a shell's children do all the time.
func TestEndOfOwnAccord(t *testing.T) {
	c := exec.Command("sh", "-c", "read line; exit 3")
	end, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var w watch
	defer w.close()
	if err := w.add(t.Context(), &fake{pids: []int{c.Process.Pid}}); err != nil {
		t.Fatal(err)
	}
	_ = end.Close()
	_ = c.Wait()
	if err := w.lost(); err != nil || !w.processes[0].exited() {
		t.Errorf("got %v", err)
	}
}

// TestFirstProcessEnds has the first process end a moment after the container has gone on.
func TestFirstProcessEnds(t *testing.T) {
	var ends time.Time
	f := &fake{}
	_, err := Run(t.Context(), f, Request{
		ID: "c", Devices: &model{}, Alive: func() bool { return ends.IsZero() || time.Now().Before(ends) }, Dump: runc.Dump{Images: t.TempDir()},
		Hold: onRelease{func() { ends = time.Now().Add(watchTime / 2) }},
	})
	if !errors.Is(err, failure.ErrLost) {
		t.Errorf("got %v", err)
	}
}

// TestStaysFrozen has a container frozen again by others: it does not run.
func TestStaysFrozen(t *testing.T) {
	f := &fake{}
	_, err := Run(t.Context(), f, Request{
		ID: "c", Alive: func() bool { return true }, Dump: runc.Dump{Images: t.TempDir()}, Hold: onRelease{func() { f.did = []string{"pause"} }},
	})
	if !errors.Is(err, failure.ErrLost) {
		t.Errorf("got %v", err)
	}
}

func (h onRelease) Progress() string { return "" }
