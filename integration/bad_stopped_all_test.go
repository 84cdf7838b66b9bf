package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/runc"
)

// TestBadStopsInDump stops a process after it was looked at and before it is frozen: CRIU, which waits for it in the kernel, is ended in time, and the container runs on.
func TestBadStopsInDump(t *testing.T) {
	bin := t.TempDir()
	victim := filepath.Join(bin, "victim")
	script := fmt.Sprintf("#!/bin/sh\nfor word; do [ \"$word\" = pause ] && kill -STOP $(cat %s) && sleep 0.1; done\nexec %s \"$@\"\n", victim, filepath.Join(shared.lab.Tool("tools"), "runc"))
	if err := os.WriteFile(filepath.Join(bin, "runc"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "stops", lab.HostOptions{Path: []string{bin}, CryoConfig: "[dump]\ntimeout = 1\n"})
	id, ref := name(t), "bad/stopped:3"
	start(t, h, id, nil, "workload", "count", "--memory", "8")
	if freezerOf(t, h, id) == "" {
		t.Skip("this machine has no cgroup v1")
	}
	pid, _, err := h.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(victim, []byte(fmt.Sprint(pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	before := trace(t, h)
	began := time.Now()
	refusal(t, h.Cryo(t.Context(), "checkpoint", id, ref), codeDeadline, "the container runs on")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	if frozen, err := runc.Frozen(pid); frozen || err != nil || !isStopped(pid) {
		t.Errorf("frozen: %v, %v", frozen, err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	counts(t, h, id)
	wantTrace(t, h, before)
}
