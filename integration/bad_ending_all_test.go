package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadEnding has containerd and the shim go away while a checkpoint ends its container: the snapshot is kept, and restored.
func TestBadEnding(t *testing.T) {
	bin := t.TempDir()
	asked, killed := filepath.Join(bin, "asked"), filepath.Join(bin, "killed")
	// It shows the instant of the order, and gives it later.
	script := fmt.Sprintf("#!/bin/sh\nfor word; do\n[ \"$word\" = kill ] && [ -e %[1]s ] && { rm %[1]s; touch %[2]s; sleep 1; }\ndone\nexec %[3]s \"$@\"\n",
		asked, killed, filepath.Join(shared.lab.Tool("tools"), "runc"))
	if err := os.WriteFile(filepath.Join(bin, "runc"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "ending", lab.HostOptions{Path: []string{bin}})
	restart := func(sig syscall.Signal) func(*testing.T, int) {
		return func(t *testing.T, _ int) {
			if err := h.StopDaemon(sig); err != nil {
				t.Fatal(err)
			}
			if err := h.StartDaemon(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, do := range map[string]func(t *testing.T, shim int){
		"containerd restarted": restart(syscall.SIGTERM),
		"containerd killed":    restart(syscall.SIGKILL),
		"shim killed":          func(t *testing.T, shim int) { kill(t, shim) },
	} {
		t.Run(what, func(t *testing.T) {
			id, ref := name(t), "bad/ending:1"
			start(t, h, id, nil, "workload", "count", "--memory", "64")
			forget(t, h, ref)
			shim := find(t, h, runsShim(id))
			if err := os.WriteFile(asked, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			ended := make(chan lab.Result, 1)
			go func() { ended <- h.Cryo(t.Context(), "checkpoint", id, ref) }()
			eventually(t, "order to kill", time.Minute, func() bool { return os.Remove(killed) == nil })
			do(t, shim)
			must(t, <-ended)
			must(t, h.Cryo(t.Context(), "verify", ref))
			eventually(t, "end of the container", 30*time.Second, func() bool {
				_, status, err := h.Task(t.Context(), id)
				return err == nil && status != "RUNNING" && status != "PAUSED"
			})
			remove(t.Context(), h, id)
			must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
			counts(t, h, id)
		})
	}
}
