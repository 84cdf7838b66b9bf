package integration

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestBadHang stops CRIU in restores, so that they hang as one does that opens a FIFO of a hostile snapshot: the command ends soon when it is told to, the task
// can be removed, nothing is left, and another restore is not delayed.
func TestBadHang(t *testing.T) {
	a, _ := pair(t)
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
			end(c.Process.Pid)
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it says that all is well")
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
