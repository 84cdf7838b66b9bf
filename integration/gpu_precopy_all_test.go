package integration

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// full leaves a host's first GPU without room for copies, for a container that has up to 256 MiB there.
func full(t *testing.T, h *lab.Host) {
	t.Helper()
	small := gpusOfA
	small.Devices = []lab.GPU{{Minor: 0, Memory: 400 << 20}, {Minor: 1}}
	setGPUs(t, h, small, gpusOfA)
}

// churning is a program with memory that stays as it is and memory that is written all the time; heeding orders of the container.
var churning = []string{"--blocks", "96,3,1", "--churn", "64"}

// copiedAhead takes a snapshot of a container that runs on, and returns how many bytes were handed over, and how many of these had been copied while it ran and have not changed.
func copiedAhead(t *testing.T, h *lab.Host, id, ref string, flags ...string) (bytes, same float64) {
	t.Helper()
	gpu, _ := decoded(t, h.Cryo(t.Context(), slices.Concat([]string{"checkpoint", id, ref, "--leave-running", "--json"}, flags)...))["gpu"].(map[string]any)
	bytes, _ = gpu["bytes"].(float64)
	same, _ = gpu["same"].(float64)
	return bytes, same
}

// TestGPUPrecopy has a program write to a part of its memory all the time, on a GPU without room for copies: what stays as it is was copied while it ran, and the snapshot has every byte of the moment when it stood
// still. The next snapshot, and one of what was restored, copy all when it stands still: the driver has restored the program by then.
func TestGPUPrecopy(t *testing.T) {
	a, _ := gpuPair(t)
	full(t, a)
	for title, test := range map[string]struct{ flags, args []string }{
		"allocations":   {handing, churning},
		"small pieces":  {smallPieces, churning},
		"handles":       {handing, slices.Concat(churning, []string{"--kinds", "whole,plain,plain"})},
		"zeros":         {handing, slices.Concat(churning, []string{"--kinds", "blank,plain,plain"})},
		"freed and new": {smallPieces, slices.Concat(churning, []string{"--storm", "6"})},
		"two processes": {slices.Concat(handing, forceSeveral), []string{"--blocks", "48,3", "--churn", "24", "--processes", "2"}},
	} {
		t.Run(title, func(t *testing.T) {
			id, ref := name(t), "gpu/precopy:1"
			before := startGPU(t, a, id, test.flags, test.args...)
			forget(t, a, ref)
			bytes, same := copiedAhead(t, a, id, ref)
			if same < 64<<20 || same >= bytes {
				t.Errorf("%.0f of %.0f MiB are as they were copied while it ran", same/(1<<20), bytes/(1<<20))
			}
			unharmed(t, a, id, before)
			forget(t, a, ref+"b")
			if bytes, same := copiedAhead(t, a, id, ref+"b"); bytes < 128<<20 || same != 0 {
				t.Errorf("%.0f of %.0f MiB of the second are as they were copied while it ran", same/(1<<20), bytes/(1<<20))
			}
			unharmed(t, a, id, before)
			remove(t.Context(), a, id)
			must(t, a.Cryo(t.Context(), "verify", ref, "--allow", "devices"))
			must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
			unharmed(t, a, id, before)
			remove(t.Context(), a, id)
			alone(t, a)
		})
	}
}

// TestGPUPrecopyNot has GPUs that have room for a copy, a container that is to end, and kernels that do not sum as they should: all is copied when the container stands still.
func TestGPUPrecopyNot(t *testing.T) {
	a, _ := gpuPair(t)
	ref := "gpu/precopy:2"
	forget(t, a, ref)
	not := func(t *testing.T) {
		t.Helper()
		id := name(t)
		before := startGPU(t, a, id, smallPieces, churning...)
		if bytes, same := copiedAhead(t, a, id, ref); bytes < 160<<20 || same != 0 {
			t.Errorf("%.0f of %.0f bytes were copied while it ran", same, bytes)
		}
		unharmed(t, a, id, before)
		remove(t.Context(), a, id)
		alone(t, a)
	}
	t.Run("room", not)
	full(t, a)
	for _, said := range []string{"cryo_sums * error 700", "cryo_sums.wrong * error 1 always", "cuModuleLoadData * error 218 always"} {
		t.Run(said, func(t *testing.T) {
			order(t, a, said)
			not(t)
		})
	}
	// The test of the kernel has four calls.
	t.Run("fails while it runs", func(t *testing.T) {
		order(t, a, append(slices.Repeat([]string{"cryo_sums * pass"}, 4+5), "cryo_sums * error 700")...)
		not(t)
		carriedOut(t, a)
	})
	// While it runs, each 4 MiB have a call, which are 41, and one more where a window ends; when it stands still, each of 23 pieces has.
	t.Run("fails when it stands still", func(t *testing.T) {
		id := name(t)
		before := startGPU(t, a, id, smallPieces, churning...)
		order(t, a, append(slices.Repeat([]string{"cryo_sums * pass"}, 4+41+10), "cryo_sums * error 700 always")...)
		refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"), codeAborted, "the container runs on")
		unharmed(t, a, id, before)
		order(t, a)
		alone(t, a)
	})
}

// TestGPUPrecopyPushed sends a snapshot to a registry while it is taken, and restores it on another host.
func TestGPUPrecopyPushed(t *testing.T) {
	a, b := gpuPair(t)
	full(t, a)
	id, ref := name(t), shared.registry.Reference("gpu/"+name(t)+":1")
	before := startGPU(t, a, id, smallPieces, churning...)
	forget(t, a, ref)
	forget(t, b, ref)
	if _, same := copiedAhead(t, a, id, ref, "--push", "--plain-http"); same < 64<<20 {
		t.Errorf("%.0f bytes were copied while it ran", same)
	}
	remove(t.Context(), a, id)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	asBefore(t, b, id, before)
	alone(t, a)
	alone(t, b)
}

// copiesAhead is when a part is copied while the container runs.
var copiesAhead = moment{"cuMemcpyDtoDAsync * delay 1500", false}

// TestGPUPrecopyKilled kills those that take part while memory is copied and its process runs: that runs on, and without the keeper there is a snapshot all the same.
func TestGPUPrecopyKilled(t *testing.T) {
	a, _ := gpuPair(t)
	full(t, a)
	ref := "gpu/precopy:3"
	ownOrder(t, a)
	forget(t, a, ref)
	traced := trace(t, a)
	lends := moment{"cuMemExportToShareableHandle 1 delay 800", true}
	for _, test := range []struct {
		victim  string
		moments []moment
		whole   bool
	}{
		{"client", []moment{lends, copiesAhead}, false},
		{"checkpoint", []moment{copiesAhead}, false},
		{"helper", []moment{copiesAhead}, false},
		{"keeper", []moment{lends, copiesAhead}, true},
	} {
		for _, m := range test.moments {
			t.Run(fmt.Sprintf("%s at %s", test.victim, m), func(t *testing.T) {
				id := name(t)
				before := startGPU(t, a, id, heeding, churning...)
				come := m.come(t, a)
				r := killed(t, a, id, ref, test.victim, func(b *background) { b.until(t, "call", come) })
				unharmed(t, a, id, before)
				if test.whole {
					must(t, r)
					handedOver(t, a, ref, 160<<20)
				} else if r.Code == 0 {
					t.Error("there is a snapshot")
				} else if test.victim == "helper" {
					refusal(t, r, codeAborted, "the container runs on")
				}
				if err := a.Order(); err != nil {
					t.Fatal(err)
				}
				remove(t.Context(), a, id)
				tidy(t, a, ref, traced)
				alone(t, a)
			})
		}
	}
	t.Run("interrupted", func(t *testing.T) {
		id := name(t)
		before := startGPU(t, a, id, heeding, churning...)
		come := copiesAhead.come(t, a)
		b := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running")
		b.until(t, "call", come)
		if err := syscall.Kill(find(t, a, called("cryo")), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if r := b.wait(t); r.Code == 0 {
			t.Error("there is a snapshot")
		}
		unharmed(t, a, id, before)
		if err := a.Order(); err != nil {
			t.Fatal(err)
		}
		if _, same := copiedAhead(t, a, id, ref); same < 64<<20 {
			t.Errorf("%.0f bytes were copied while it ran the second time", same)
		}
		remove(t.Context(), a, id)
		tidy(t, a, ref, traced)
	})
	alone(t, a)
}

// TestGPUPrecopyEnded ends the container, or its shim, while memory is copied: nothing is left of it or of those that took part.
func TestGPUPrecopyEnded(t *testing.T) {
	a, _ := gpuPair(t)
	full(t, a)
	ref := "gpu/precopy:4"
	forget(t, a, ref)
	traced := trace(t, a)
	for _, victim := range []string{"fakeapp", "shim", "container"} {
		t.Run(victim, func(t *testing.T) {
			id := name(t)
			startGPU(t, a, id, handing, churning...)
			come := copiesAhead.come(t, a)
			b := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running")
			b.until(t, "call", come)
			switch victim {
			case "container":
				must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", id))
			case "fakeapp":
				kill(t, find(t, a, called("fakeapp")))
			default:
				b.victim(t, a, victim)
			}
			if r := b.wait(t); r.Code == 0 {
				t.Errorf("there is a snapshot: %s", r.Stdout)
			}
			if err := a.Order(); err != nil {
				t.Fatal(err)
			}
			remove(t.Context(), a, id)
			tidy(t, a, ref, traced)
			alone(t, a)
		})
	}
}
