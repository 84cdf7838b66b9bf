package device

import (
	"context"
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/gputest"
)

// Most tests wait most of the time, so that many run side by side.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

const mib = 1 << 20

// rig is a host with fake devices, and the helper for them.
type rig struct {
	*gputest.Host
	t      *testing.T
	helper string // its path
}

// newRig makes devices of 64 MiB. The test runs beside others from here on.
func newRig(t *testing.T, devices int) *rig {
	t.Helper()
	gputest.Need(t)
	t.Parallel()
	h := gputest.New(t, slices.Repeat([]int{64}, devices)...)
	return &rig{Host: h, t: t, helper: h.Helper()}
}

// start starts a helper.
func (r *rig) start() *Helper {
	r.t.Helper()
	c, err := StartHelper(r.t.Context(), r.helper)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Kill(); _ = c.Close() })
	return c
}

// done fails the test unless each call was.
func done(t *testing.T) func([]Outcome, error) {
	t.Helper()
	return func(outcomes []Outcome, err error) {
		t.Helper()
		if err != nil || slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Code != 0 }) {
			t.Fatalf("%+v, %v", outcomes, err)
		}
	}
}

// hold brings processes into a state.
func hold(t *testing.T, c *Helper, pids []int, s ProcessState) {
	t.Helper()
	done(t)(c.Lock(t.Context(), pids, time.Second))
	if s == StateCheckpointed {
		done(t)(c.Checkpoint(t.Context(), pids))
	}
}

// states fails the test unless the processes are in these states.
func states(t *testing.T, c *Helper, pids []int, want ...ProcessState) {
	t.Helper()
	got, err := c.States(context.Background(), pids)
	if err != nil {
		t.Fatal(err)
	}
	for i, pid := range pids {
		if got[pid] != want[min(i, len(want)-1)] {
			t.Fatalf("states %v of %v, want %v", got, pids, want)
		}
	}
}
