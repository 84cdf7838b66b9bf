package integration

import (
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// reading is what the clocks of a container say, and after how long a timer has run down (0: not yet).
type reading struct{ monotonic, boot, wall, timer time.Duration }

func clocks(t *testing.T, h *lab.Host, id string) reading {
	t.Helper()
	a, err := h.Ask(t.Context(), id, "clock")
	if err != nil || !a.OK {
		t.Fatalf("%v: %s", err, a.Error)
	}
	in := func(name string) time.Duration { f, _ := a.State[name].(float64); return time.Duration(f) }
	return reading{in("monotonic"), in("boot"), in("wall"), in("timer")}
}

// TestClonesTime restores clones some seconds after the snapshot. Monotonic clocks go on where they stood still, the wall clock is the host's, and a timer runs down after the time
// that it has run, and not after the time that has passed.
func TestClonesTime(t *testing.T) {
	const stood, timer = 4 * time.Second, 8 * time.Second
	h, _ := pair(t)
	id := name(t)
	ref := "clones/" + id + ":1"
	startImage(t, h, shared.image, id, nil, "workload", "clones", "--timer", timer.String())
	await(t, h, id)
	forget(t, h, ref)
	before := clocks(t, h, id)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	time.Sleep(stood)
	for _, clone := range []string{id + "-1", id + "-2"} {
		cleanup(t, h, clone)
		must(t, h.Cryo(t.Context(), "restore", ref, "--name", clone))
		await(t, h, clone)
		at := clocks(t, h, clone)
		wall := at.wall - before.wall
		for name, ran := range map[string]time.Duration{"monotonic": at.monotonic - before.monotonic, "boot": at.boot - before.boot} {
			if ran < 0 || ran > wall-stood {
				t.Errorf("%s: in %v of the wall clock, of which it stood still for %v at least, the %s clock has gone on by %v", clone, wall, stood, name, ran)
			}
		}
		if away := time.Until(time.Unix(0, int64(at.wall))).Abs(); away > 10*time.Second {
			t.Errorf("%s: the wall clock is %v away", clone, away)
		}
		if at.timer != 0 {
			t.Errorf("%s: the timer has run down already, after %v", clone, at.timer)
		}
	}
	for _, clone := range []string{id + "-1", id + "-2"} {
		var at reading
		eventually(t, "the timer", time.Minute, func() bool { at = clocks(t, h, clone); return at.timer != 0 })
		if at.timer < timer || at.timer > timer+2*time.Second {
			t.Errorf("%s: the timer has run down after %v, not %v", clone, at.timer, timer)
		}
	}
}
