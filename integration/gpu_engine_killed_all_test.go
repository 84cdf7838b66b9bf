package integration

import (
	"fmt"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// moment is one in a checkpoint that hands memory over: a call that takes long then, of the driver's own, the keeper's or the library's.
type moment struct {
	said string // an order
	own  bool   // of the library, in the container
}

// Moments in the order in which they come.
var (
	gives     = moment{"cuMemExportToShareableHandle 1 delay 800", true}
	holds     = moment{"cuMemImportFromShareableHandle 1 delay 800", false}
	lets      = moment{"cuMemRelease 1 delay 800", true}
	locks     = moment{"lock 1 slow 800", false}
	saves     = moment{"checkpoint 1 slow 800", false}
	sends     = moment{"cuMemcpyDtoHAsync 1 delay 800", false}
	loads     = moment{"restore 1 slow 800", false}
	unlocks   = moment{"unlock 1 slow 800", false}
	takesBack = moment{"cuMemImportFromShareableHandle 1 delay 800", true}
)

// come makes a moment take long, and tells when it has come.
func (m moment) come(t *testing.T, h *lab.Host) func() bool {
	t.Helper()
	if !m.own {
		order(t, h, m.said)
		return obeyed(t, h)
	}
	ownOrder(t, h, m.said)
	return func() bool {
		done, err := h.OwnOrdersDone()
		if err != nil {
			t.Fatal(err)
		}
		return done > 0
	}
}

func (m moment) String() string {
	if m.own {
		return m.said + " in the container"
	}
	return m.said
}

// TestGPUKeeperEngineKilled kills each of those that take part, at moments when the device memory is with one or another. The container
// runs on with every byte of it, and what was done of the snapshot is gone.
func TestGPUKeeperEngineKilled(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/taken:1"
	ownOrder(t, a)
	before := startGPU(t, a, id, heeding, "--blocks", "3,4")
	forget(t, a, ref)
	traced := trace(t, a)
	for _, test := range []struct {
		victim  string
		moments []moment
	}{
		{"client", []moment{gives, holds, lets, saves, sends, takesBack}},
		{"helper", []moment{saves, loads}},
		{"keeper", []moment{holds, locks, sends, unlocks}},
	} {
		for _, m := range test.moments {
			t.Run(fmt.Sprintf("%s at %s", test.victim, m), func(t *testing.T) {
				come := m.come(t, a)
				r := killed(t, a, id, ref, test.victim, func(b *background) { b.until(t, "call", come) })
				unharmed(t, a, id, before)
				if r.Code != 0 && test.victim != "client" {
					refusal(t, r, codeAborted, "the container runs on")
				}
				if err := a.Order(); err != nil {
					t.Fatal(err)
				}
				tidy(t, a, ref, traced)
			})
		}
	}
	t.Run("criu", func(t *testing.T) {
		refusal(t, killed(t, a, id, ref, "criu", func(b *background) { b.untilDumping(t, a) }), codeAborted, "the container runs on")
		unharmed(t, a, id, before)
		tidy(t, a, ref, traced)
	})
	alone(t, a)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	handedOver(t, a, ref, 6<<20)
}

// TestGPUKeeperEngineEnded kills the container's process, the shim, or the container by its client likewise: the container is gone, with the
// reason, and nothing is left of it or of those that took part.
func TestGPUKeeperEngineEnded(t *testing.T) {
	a, _ := gpuPair(t)
	ref := "gpu/ended:1"
	forget(t, a, ref)
	ownOrder(t, a)
	traced := trace(t, a)
	for _, test := range []struct {
		victim  string
		moments []moment
	}{
		{"fakeapp", []moment{lets, saves, takesBack}},
		{"shim", []moment{lets, saves, takesBack}},
		{"container", []moment{lets, sends, takesBack}},
	} {
		for _, m := range test.moments {
			t.Run(fmt.Sprintf("%s at %s", test.victim, m), func(t *testing.T) {
				id := name(t)
				startGPU(t, a, id, heeding, "--blocks", "3,4")
				come := m.come(t, a)
				b := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running")
				b.until(t, "call", come)
				switch test.victim {
				case "container":
					must(t, a.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", id))
				case "fakeapp":
					kill(t, find(t, a, called("fakeapp")))
				default:
					b.victim(t, a, test.victim)
				}
				r := b.wait(t)
				gone(t, a, id)
				if r.Code == 0 && m == sends {
					t.Errorf("a snapshot of a container that was killed: %s", r.Stdout)
				}
				remove(t.Context(), a, id)
				alone(t, a)
				if err := a.Order(); err != nil {
					t.Fatal(err)
				}
				a.Cryo(t.Context(), "rm", ref)
				wantTrace(t, a, traced)
			})
		}
	}
}
