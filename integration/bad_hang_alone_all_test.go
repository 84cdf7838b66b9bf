package integration

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/runc"
)

// TestBadHang stops CRIU in restores, so that they hang as one does that opens a FIFO of a hostile snapshot: the command ends soon when it is told to, the task
// can be removed, nothing is left, and another restore is not delayed.
func TestBadHang(t *testing.T) {
	a, _ := pair(t)
	guarded(t, a)
	ref, id := snapshotOf(t, a, "count", "--memory", "128"), name(t)
	before := trace(t, a)
	restore := []string{"restore", ref, "--name", id, "--eager"}
	for what, end := range map[string]func(command int){
		"SIGTERM": func(command int) { _ = syscall.Kill(command, syscall.SIGTERM) },
		"delete": func(int) { // the command undoes what has failed, and may be first
			if r := a.Ctr(t.Context(), "tasks", "delete", "--force", id); r.Code != 0 && !strings.Contains(r.Stderr, "not found") {
				t.Error(r)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := a.Command(t.Context(), "cryo", restore...)
			ended := make(chan error, 1)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			go func() { ended <- c.Wait() }()
			criu := find(t, a, dumping(a))
			if criu == 0 || syscall.Kill(criu, syscall.SIGSTOP) != nil {
				t.Fatalf("no restore: %v", <-ended)
			}
			time.Sleep(500 * time.Millisecond)
			begin := time.Now()
			end(c.Process.Pid)
			select {
			case err := <-ended:
				took := time.Since(begin)
				t.Logf("%s: it has ended after %s", what, took)
				if err == nil || took > time.Second {
					t.Errorf("it has ended after %s: %v", took, err)
				}
			case <-time.After(30 * time.Second):
				_ = syscall.Kill(criu, syscall.SIGCONT)
				t.Fatal("the command hangs")
			}
			wantTrace(t, a, before)
		})
	}
	must(t, a.Cryo(t.Context(), restore...))
	counts(t, a, id)
	remove(t.Context(), a, id)
}

// TestBadHangDeadline stops CRIU in restores, or runc too, and nobody ends them: the shim does, when there was no progress for as long as the configuration says.
// Everything is undone, and another restore is not delayed.
func TestBadHangDeadline(t *testing.T) {
	const timeout = 3 * time.Second
	h := newHost(t, "hang", lab.HostOptions{CryoConfig: fmt.Sprintf("[restore]\ntimeout = %d\n", timeout/time.Second)})
	ref, id := snapshotOf(t, h, "count", "--memory", "128"), name(t)
	cleanup(t, h, id)
	before := trace(t, h)
	for what, test := range map[string]struct {
		flags []string
		runc  bool
	}{"eager": {[]string{"--eager"}, false}, "lazy": {nil, false}, "with runc": {nil, true}} {
		t.Run(what, func(t *testing.T) {
			restore := append([]string{"restore", ref, "--name", id}, test.flags...)
			quick := func() time.Duration {
				begin := time.Now()
				must(t, h.Cryo(t.Context(), restore...))
				took := time.Since(begin)
				counts(t, h, id)
				remove(t.Context(), h, id)
				return took
			}
			usual := max(quick(), quick())
			ended := make(chan lab.Result, 1)
			go func() { ended <- h.Cryo(t.Context(), restore...) }()
			criu := find(t, h, dumping(h))
			if criu == 0 || syscall.Kill(criu, syscall.SIGSTOP) != nil {
				t.Fatal("no restore")
			}
			if test.runc {
				parent, err := runc.Parent(criu)
				if err != nil || syscall.Kill(parent, syscall.SIGSTOP) != nil {
					t.Fatal(err)
				}
			}
			begin := time.Now()
			select {
			case r := <-ended:
				took := time.Since(begin)
				t.Logf("it has ended after %s", took)
				refusal(t, r, codeDeadline, "CRIU has made no progress for 3s")
				if took < timeout || took > 3*timeout {
					t.Errorf("it has ended after %s", took)
				}
			case <-time.After(30 * time.Second):
				_ = syscall.Kill(criu, syscall.SIGKILL)
				t.Fatalf("the command hangs: %v", <-ended)
			}
			wantTrace(t, h, before)
			if again := quick(); again > usual+time.Second {
				t.Errorf("another restore takes %s, usually %s", again, usual)
			}
		})
	}
}
