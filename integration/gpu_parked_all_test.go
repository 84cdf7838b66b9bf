package integration

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// parked starts a container, pauses it as stock clients do, and takes a checkpoint with ctr: the container stays paused, its device
// memory saved.
func parked(t *testing.T, h *lab.Host) (id string, before lab.Answer) {
	t.Helper()
	id = name(t)
	before = startSeveral(t, h, id)
	must(t, h.Ctr(t.Context(), "tasks", "pause", id))
	stockImages(t, h, id)
	paused(t, h, id)
	if n := helpers(t, h); n != 0 {
		t.Errorf("%d helpers run for a parked container", n)
	}
	return id, before
}

// stockImages takes a checkpoint with ctr into a directory that goes with the test. containerd's image of it is empty.
func stockImages(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	must(t, h.Ctr(t.Context(), "tasks", "checkpoint", "--image-path", filepath.Join(t.TempDir(), "images"), id))
	for image := range strings.Lines(must(t, h.Ctr(t.Context(), "images", "ls", "-q")).Stdout) {
		if strings.Contains(image, "/checkpoint/"+id+":") {
			must(t, h.Ctr(t.Context(), "images", "delete", "--sync", strings.TrimSpace(image)))
		}
	}
}

func paused(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	if _, status, err := h.Task(t.Context(), id); status != "PAUSED" {
		t.Errorf("the task is %q (%v), want PAUSED", status, err)
	}
}

// TestGPUParked does with a parked container what clients do.
func TestGPUParked(t *testing.T) {
	a, _ := gpuPair(t)
	traced := trace(t, a)
	t.Run("resume", func(t *testing.T) {
		id, before := parked(t, a)
		must(t, a.Ctr(t.Context(), "tasks", "resume", id))
		unharmed(t, a, id, before)
		remove(t.Context(), a, id)
		wantTrace(t, a, traced)
	})
	t.Run("again", func(t *testing.T) {
		id, before := parked(t, a)
		stockImages(t, a, id)
		paused(t, a, id)
		ref := "gpu/parked:1"
		forget(t, a, ref)
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
		paused(t, a, id)
		must(t, a.Ctr(t.Context(), "tasks", "resume", id))
		unharmed(t, a, id, before)
		remove(t.Context(), a, id)
		must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
		unharmed(t, a, id, before)
		remove(t.Context(), a, id)
	})
	t.Run("kill", func(t *testing.T) {
		id, _ := parked(t, a)
		must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", id))
		gone(t, a, id)
		must(t, a.Ctr(t.Context(), "tasks", "delete", id))
		remove(t.Context(), a, id)
		wantTrace(t, a, traced)
	})
	t.Run("delete", func(t *testing.T) {
		id, _ := parked(t, a)
		must(t, a.Ctr(t.Context(), "tasks", "delete", "--force", id))
		remove(t.Context(), a, id)
		wantTrace(t, a, traced)
	})
	t.Run("shim dies", func(t *testing.T) {
		id, _ := parked(t, a)
		kill(t, find(t, a, runsShim(id)))
		gone(t, a, id)
		remove(t.Context(), a, id)
		wantTrace(t, a, traced)
	})
}

// TestGPUParkedFailure has the way back of a parked container fail: it passes, or the container is gone.
func TestGPUParkedFailure(t *testing.T) {
	a, _ := gpuPair(t)
	traced := trace(t, a)
	for _, said := range []string{"restore 1 exit", "restore 2 error 2", "unlock 2 exit-after"} {
		t.Run(said, func(t *testing.T) {
			id, before := parked(t, a)
			order(t, a, said)
			must(t, a.Ctr(t.Context(), "tasks", "resume", id))
			carriedOut(t, a)
			unharmed(t, a, id, before)
		})
	}
	for _, said := range []string{"restore 1 error 999", "unlock 2 error 999"} {
		t.Run(said, func(t *testing.T) {
			id, _ := parked(t, a)
			order(t, a, said)
			r := a.Ctr(t.Context(), "tasks", "resume", id)
			if r.Code == 0 {
				t.Error("resumed")
			}
			if !strings.Contains(r.Stderr, "the container is lost") || !strings.Contains(r.Stderr, "CUDA_ERROR_UNKNOWN") {
				t.Errorf("without the reason: %s", r.Stderr)
			}
			gone(t, a, id)
			remove(t.Context(), a, id)
			wantTrace(t, a, traced)
		})
	}
}

// TestGPUPausedFailure has the driver fail while a stock client has the container paused: it is paused again, and goes on after.
func TestGPUPausedFailure(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	before := startSeveral(t, a, id)
	for _, said := range []string{"lock 1 error 999", "lock 2 exit", "checkpoint 1 exit-after", "checkpoint 2 error 801"} {
		t.Run(said, func(t *testing.T) {
			must(t, a.Ctr(t.Context(), "tasks", "pause", id))
			order(t, a, said)
			unchanged(t, a, func() { refusedStock(t, a, "", id) })
			carriedOut(t, a)
			paused(t, a, id)
			must(t, a.Ctr(t.Context(), "tasks", "resume", id))
			unharmed(t, a, id, before)
		})
	}
}

// TestGPUParkedClientKilled kills ctr in the middle of a checkpoint for which it has paused the container. The container stays
// paused, as with the stock runtime, and can be resumed.
func TestGPUParkedClientKilled(t *testing.T) {
	a, _ := gpuPair(t)
	for _, said := range []string{"lock 1 slow 500", "checkpoint 2 slow 500"} {
		t.Run(said, func(t *testing.T) {
			id := name(t)
			before := startSeveral(t, a, id)
			t.Cleanup(func() {
				a.Ctr(cleanupContext(t), "images", "delete", "cryo.test/killed")
				clearStockTemporary(t, a)
			})
			order(t, a, said)
			b := inBackground(t, a, "ctr", "containers", "checkpoint", "--task", "--rw", "--image", id, "cryo.test/killed")
			b.until(t, "call", obeyed(t, a))
			b.kill()
			b.wait(t)
			eventually(t, "the container stands still", 30*time.Second, func() bool {
				_, status, _ := a.Task(t.Context(), id)
				return status == "PAUSED" && !running(t, a, "criu")() && helpers(t, a) == 0
			})
			must(t, a.Ctr(t.Context(), "tasks", "resume", id))
			unharmed(t, a, id, before)
		})
	}
	t.Run("parked", func(t *testing.T) {
		id := name(t)
		before := startSeveral(t, a, id)
		t.Cleanup(func() {
			a.Ctr(cleanupContext(t), "images", "delete", "cryo.test/killed")
			clearStockTemporary(t, a)
		})
		b := inBackground(t, a, "ctr", "containers", "checkpoint", "--task", "--rw", "--image", id, "cryo.test/killed")
		b.until(t, "dump", running(t, a, "criu"))
		pid := find(t, a, called("ctr"))
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the container is parked", 30*time.Second, func() bool {
			_, status, _ := a.Task(t.Context(), id)
			return status == "PAUSED" && !running(t, a, "criu")() && helpers(t, a) == 0
		})
		b.kill()
		b.wait(t)
		must(t, a.Ctr(t.Context(), "tasks", "resume", id))
		unharmed(t, a, id, before)
	})
}
