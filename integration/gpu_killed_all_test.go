package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// during are the calls of a checkpoint that leaves its container running, in their order, each in a way that it takes long.
var during = []string{"state %d delay 600", "lock %d slow 600", "checkpoint %d slow 600", "restore %d slow 600", "unlock %d slow 600"}

// TestGPUKilledCheckpoint kills the checkpoint process in each call for each process: the container runs on with its GPU.
func TestGPUKilledCheckpoint(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/client:1"
	before := startSeveral(t, a, id)
	forget(t, a, ref)
	traced := trace(t, a)
	for _, call := range during {
		eachProcess(t, call, func(t *testing.T, n int) {
			order(t, a, fmt.Sprintf(call, n))
			killed(t, a, id, ref, "checkpoint", func(b *background) { b.until(t, "call", obeyed(t, a)) })
			unharmed(t, a, id, before)
			tidy(t, a, ref, traced)
		})
	}
	t.Run("dump", func(t *testing.T) {
		killed(t, a, id, ref, "checkpoint", func(b *background) { b.untilDumping(t, a) })
		unharmed(t, a, id, before)
		tidy(t, a, ref, traced)
	})
	killedInHold(t, a, ref, "checkpoint", traced)
}

// TestGPUKilledHelper kills the helper likewise, and CRIU: the container runs on with its GPU.
func TestGPUKilledHelper(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/helper:1"
	before := startSeveral(t, a, id)
	forget(t, a, ref)
	traced := trace(t, a)
	for _, call := range during {
		eachProcess(t, call, func(t *testing.T, n int) {
			order(t, a, fmt.Sprintf(call, n))
			r := killed(t, a, id, ref, "helper", func(b *background) { b.until(t, "call", obeyed(t, a)) })
			unharmed(t, a, id, before)
			if down := call[0] != 'r' && call[0] != 'u'; down == (r.Code == 0) {
				t.Errorf("exit code %d: %s", r.Code, r.Stderr)
			} else if down {
				refusal(t, r, codeAborted, "keeper")
			}
			tidy(t, a, ref, traced)
		})
	}
	t.Run("dump", func(t *testing.T) {
		must(t, killed(t, a, id, ref, "helper", func(b *background) { b.untilDumping(t, a) }))
		unharmed(t, a, id, before)
		tidy(t, a, ref, traced)
	})
	must(t, killedInHold(t, a, ref, "helper", traced))
	t.Run("criu", func(t *testing.T) {
		refusal(t, killed(t, a, id, ref, "criu", func(b *background) { b.untilDumping(t, a) }), codeAborted, "the container runs on")
		unharmed(t, a, id, before)
		tidy(t, a, ref, traced)
	})
}

// TestGPUKilledShim kills the shim likewise: containerd ends the container, which is reported lost, and nothing of it is left.
func TestGPUKilledShim(t *testing.T) {
	a, _ := gpuPair(t)
	ref := "gpu/shim:1"
	forget(t, a, ref)
	traced := trace(t, a)
	check := func(t *testing.T, until func(b *background), flags ...string) {
		id := name(t)
		startSeveral(t, a, id, flags...)
		r := killed(t, a, id, ref, "shim", until)
		if strings.Contains(r.Stderr, "its snapshot is complete") { // it was dumped by then
			if r.Code != codeLost || !strings.Contains(r.Stderr, "the container is lost") {
				t.Errorf("exit code %d", r.Code)
			}
			must(t, a.Cryo(t.Context(), "verify", "--allow", "all", ref))
		} else {
			refusal(t, r, codeLost, "lost")
		}
		gone(t, a, id)
		remove(t.Context(), a, id)
		a.Cryo(t.Context(), "rm", ref)
		wantTrace(t, a, traced)
		if t.Failed() {
			t.Fatal(r.Stderr)
		}
	}
	for _, call := range during {
		eachProcess(t, call, func(t *testing.T, n int) {
			order(t, a, fmt.Sprintf(call, n))
			check(t, func(b *background) { b.until(t, "call", obeyed(t, a)) })
		})
	}
	t.Run("dump", func(t *testing.T) { check(t, func(b *background) { b.untilDumping(t, a) }) })
	t.Run("hold", func(t *testing.T) { check(t, func(b *background) { b.untilHeld(t, a) }, pagesInFiles(t, a)...) })
}

// killedInHold kills while the shim holds a container for the checkpoint process, after CRIU's dump.
func killedInHold(t *testing.T, h *lab.Host, ref, victim string, traced []string) (r lab.Result) {
	t.Helper()
	t.Run("hold", func(t *testing.T) {
		id := name(t)
		before := startSeveral(t, h, id, pagesInFiles(t, h)...)
		r = killed(t, h, id, ref, victim, func(b *background) { b.untilHeld(t, h) })
		unharmed(t, h, id, before)
		remove(t.Context(), h, id)
		tidy(t, h, ref, traced)
	})
	return r
}

// pagesInFiles returns flags of ctr by which CRIU writes the container's pages into files, so that a dump does not need the checkpoint process.
func pagesInFiles(t *testing.T, h *lab.Host) []string {
	t.Helper()
	path := filepath.Join(h.Dir, "pages-in-files.conf")
	if err := os.WriteFile(path, []byte("no-page-server\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--annotation", "org.criu.config=" + path}
}

// killed takes a checkpoint that leaves its container running, and kills one of those that take part once it is at some point.
func killed(t *testing.T, h *lab.Host, id, ref, victim string, until func(*background)) lab.Result {
	t.Helper()
	b := inBackground(t, h, "cryo", "checkpoint", id, ref, "--leave-running")
	until(b)
	b.victim(t, h, victim)
	b.goOn()
	r := b.wait(t)
	if want := map[string]int{"client": codeKilled, "checkpoint": codeAborted}[victim]; want != 0 && r.Code != want {
		t.Errorf("exit code %d, want %d", r.Code, want)
	}
	return r
}

// tidy has the next command clear away what the last left, and wants the host to be as before.
func tidy(t *testing.T, h *lab.Host, ref string, before []string) {
	t.Helper()
	if done, open, err := h.Orders(); err != nil || open > 0 {
		t.Errorf("%d orders were carried out, %d not (%v)", done, open, err)
	}
	if err := h.Order(); err != nil {
		t.Fatal(err)
	}
	h.Cryo(t.Context(), "rm", ref)
	swept(t, h)
	wantTrace(t, h, before, "blob ", "lease ", "snapshot cryo-view-")
	if t.Failed() {
		t.FailNow()
	}
}
