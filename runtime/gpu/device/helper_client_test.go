package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/cryo-project/cryo/integration/gputest"
)

func TestFacts(t *testing.T) {
	r := newRig(t, 2)
	a := r.Run("--mib", "3")
	f, err := r.start().Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	once, err := ReadFacts(t.Context(), r.helper)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []Facts{f, once} {
		if f.Driver != "580.159.04" || f.CUDA != 13000 || f.MPS || len(f.Devices) != 2 {
			t.Fatalf("got %+v", f)
		}
		want := Device{
			UUID: r.Devices[1], Index: 1, Minor: 1, Name: "Fake H1", Architecture: "9.0", Memory: 64 * mib, Free: 61 * mib, PCI: "00000000:11:00.0",
		}
		if f.Devices[1] != want {
			t.Errorf("got %+v, want %+v", f.Devices[1], want)
		}
		if !slices.Contains(f.Uses, DeviceUse{PID: a.PIDs[0], UUID: r.Devices[1], Memory: 3 * mib}) {
			t.Errorf("uses %+v of %v", f.Uses, a.PIDs)
		}
	}
}

func TestThereAndBack(t *testing.T) {
	r := newRig(t, 2)
	a := r.Run("--processes", "3")
	c := r.start()
	before := a.Works()
	states(t, c, append(a.PIDs, os.Getpid(), 1<<22), StateRunning, StateRunning, StateRunning, StateNone, StateNone)
	done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
	states(t, c, a.PIDs, StateLocked)
	a.Waits()
	done(t)(c.Checkpoint(t.Context(), a.PIDs))
	states(t, c, a.PIDs, StateCheckpointed)
	a.Waits()
	if f, err := c.Facts(t.Context()); err != nil || len(f.Uses) != 0 || f.Devices[0].Free != 64*mib || r.Files(0)+r.Files(1) != 0 {
		t.Errorf("memory is still on devices: %+v, %v", f, err)
	}
	done(t)(c.Restore(t.Context(), a.PIDs, nil))
	states(t, c, a.PIDs, StateLocked)
	a.Waits()
	done(t)(c.Unlock(t.Context(), a.PIDs))
	states(t, c, a.PIDs, StateRunning)
	gputest.Eventually(t, "it goes on", func() bool {
		return a.Works().State.Processes[2].Ticks > before.State.Processes[2].Ticks
	})
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.States(t.Context(), a.PIDs); !errors.As(err, new(*DiedError)) {
		t.Errorf("after its end: %v", err)
	}
}

func TestOutcomesAreInOrder(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run("--processes", "3")
	c := r.start()
	pids := []int{a.PIDs[2], 1 << 22, a.PIDs[0]}
	r.Order("lock 3 slow 1500") // also what is asked first may be last
	begin := time.Now()
	got, err := c.Lock(t.Context(), pids, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range got {
		if o.PID != pids[i] || o.Call != "cuCheckpointProcessLock" || (o.Code != 0) != (i == 1) || (o.Name == "") != (o.Code == 0) {
			t.Errorf("outcome %d: %+v", i, o)
		}
	}
	if wall := time.Since(begin).Seconds(); got[0].Seconds < 1.5 || got[0].Seconds > wall || got[2].Seconds >= got[0].Seconds {
		t.Errorf("took %.3f and %.3f s, of %.3f", got[0].Seconds, got[2].Seconds, wall)
	}
}

// TestDeadlineIsOneForAll locks more processes than there are processors.
func TestDeadlineIsOneForAll(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run("--processes", "8")
	if got, err := a.Ask("launch 60000", time.Second); err != nil || !got.OK {
		t.Fatal(got, err)
	}
	c := r.start()
	begin := time.Now()
	got, err := c.Lock(t.Context(), a.PIDs, time.Second)
	if took := time.Since(begin); err != nil || took < time.Second || took > 5*time.Second {
		t.Errorf("took %s: %v", took, err)
	}
	for _, o := range got {
		if o.Code != NotReady || o.Name != "CUDA_ERROR_NOT_READY" {
			t.Errorf("got %+v", o)
		}
	}
	states(t, c, a.PIDs, StateRunning)
}

func TestLongKernelOfOne(t *testing.T) {
	r := newRig(t, 1)
	busy, idle := r.Run(), r.Run()
	if got, err := busy.Ask("launch 1500", time.Second); err != nil || !got.OK {
		t.Fatal(got, err)
	}
	c := r.start()
	pids := []int{busy.PIDs[0], idle.PIDs[0]}
	got, err := c.Lock(t.Context(), pids, 200*time.Millisecond)
	if err != nil || got[0].Code != NotReady || got[1].Code != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	idle.Waits()
	done(t)(c.Unlock(t.Context(), pids[1:]))
	idle.Works()
	busy.Works() // once its kernel is through
}

// TestFrozen locks a process that does not run: the call ends at the deadline, and has no late effect.
func TestFrozen(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run()
	c := r.start()
	if err := syscall.Kill(a.PIDs[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	gputest.Eventually(t, "all threads stand still", func() bool {
		return !slices.ContainsFunc(threads(a.PIDs[0]), func(tid int) bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", tid))
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	})
	got, err := c.Lock(t.Context(), a.PIDs, 200*time.Millisecond)
	if err != nil || got[0].Code != NotReady {
		t.Errorf("%+v, %v", got, err)
	}
	if err := syscall.Kill(a.PIDs[0], syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	a.Works()
	states(t, c, a.PIDs, StateRunning)
	hold(t, c, a.PIDs, StateLocked)
}

func TestPairs(t *testing.T) {
	r := newRig(t, 4)
	d := r.Devices
	// A container sees some of the host's devices.
	for _, hidden := range d[2:] {
		if err := os.Rename(filepath.Join(r.Dir, hidden), filepath.Join(r.Dir, "hidden-"+hidden)); err != nil {
			t.Fatal(err)
		}
	}
	a := r.Run()
	for _, hidden := range d[2:] {
		if err := os.Rename(filepath.Join(r.Dir, "hidden-"+hidden), filepath.Join(r.Dir, hidden)); err != nil {
			t.Fatal(err)
		}
	}
	c := r.start()
	to := func(devices ...string) (pairs []DevicePair) {
		for i := 0; i < len(devices); i += 2 {
			pairs = append(pairs, DevicePair{Old: devices[i], New: devices[i+1]})
		}
		return pairs
	}
	done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
	done(t)(c.Checkpoint(t.Context(), a.PIDs))
	for name, pairs := range map[string][]DevicePair{
		"one of two":       to(d[0], d[2]),
		"two onto one":     to(d[0], d[2], d[1], d[2]),
		"one twice":        to(d[0], d[2], d[0], d[3]),
		"one it never had": to(d[0], d[2], d[3], d[1]),
	} {
		if got, err := c.Restore(t.Context(), a.PIDs, pairs); err != nil || got[0].Code != InvalidValue {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		states(t, c, a.PIDs, StateCheckpointed)
	}
	done(t)(c.Restore(t.Context(), a.PIDs, to(d[1], d[2], d[0], d[3])))
	done(t)(c.Unlock(t.Context(), a.PIDs))
	if got := a.Works().State.Processes[0].Devices; !slices.Equal(got, []string{d[3], d[2]}) {
		t.Errorf("on %v", got)
	}
	if r.Files(0)+r.Files(1) != 0 || r.Files(2) == 0 || r.Files(3) == 0 {
		t.Error("memory is on other devices")
	}
	// Once more, from there, changing places.
	done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
	done(t)(c.Checkpoint(t.Context(), a.PIDs))
	done(t)(c.Restore(t.Context(), a.PIDs, to(d[2], d[3], d[3], d[2])))
	done(t)(c.Unlock(t.Context(), a.PIDs))
	if got := a.Works().State.Processes[0].Devices; !slices.Equal(got, []string{d[2], d[3]}) {
		t.Errorf("on %v", got)
	}
}

// TestWhatTheDriverRefuses is the fake driver's likeness to the real one where that refuses.
func TestWhatTheDriverRefuses(t *testing.T) {
	t.Run("managed memory", func(t *testing.T) {
		r := newRig(t, 1)
		a := r.Run("--managed")
		c := r.start()
		done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
		if got, err := c.Checkpoint(t.Context(), a.PIDs); err != nil || got[0].Code != NotSupported {
			t.Fatalf("%+v, %v", got, err)
		}
		states(t, c, a.PIDs, StateLocked)
		done(t)(c.Unlock(t.Context(), a.PIDs))
		a.Works()
	})
	t.Run("peer access", func(t *testing.T) {
		r := newRig(t, 2)
		a := r.Run("--peer")
		c := r.start()
		done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
		done(t)(c.Checkpoint(t.Context(), a.PIDs))
		if got, err := c.Restore(t.Context(), a.PIDs, nil); err != nil || got[0].Code != InvalidValue {
			t.Fatalf("%+v, %v", got, err)
		}
	})
	t.Run("no room", func(t *testing.T) {
		r := newRig(t, 1)
		a := r.Run("--mib", "40")
		c := r.start()
		done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
		done(t)(c.Checkpoint(t.Context(), a.PIDs))
		other := r.Run("--mib", "40")
		if got, err := c.Restore(t.Context(), a.PIDs, nil); err != nil || got[0].Name != "CUDA_ERROR_OUT_OF_MEMORY" {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := other.Ask("exit 0", time.Second); err != nil {
			t.Fatal(err)
		}
		gputest.Eventually(t, "there is room", func() bool {
			got, err := c.Restore(t.Context(), a.PIDs, nil)
			return err == nil && got[0].Code == 0
		})
		done(t)(c.Unlock(t.Context(), a.PIDs))
		a.Works()
	})
	t.Run("wrong state", func(t *testing.T) {
		r := newRig(t, 1)
		a := r.Run()
		c := r.start()
		for _, call := range []func() ([]Outcome, error){
			func() ([]Outcome, error) { return c.Unlock(t.Context(), a.PIDs) },
			func() ([]Outcome, error) { return c.Checkpoint(t.Context(), a.PIDs) },
			func() ([]Outcome, error) { return c.Restore(t.Context(), a.PIDs, nil) },
		} {
			if got, err := call(); err != nil || got[0].Code != IllegalState {
				t.Errorf("%+v, %v", got, err)
			}
		}
		a.Works()
	})
}

func TestCancelledCallIsNotAbandoned(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run()
	c := r.start()
	done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
	r.Order("checkpoint 1 slow 400")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	got, err := c.Checkpoint(ctx, a.PIDs)
	if !errors.Is(err, context.DeadlineExceeded) || len(got) != 1 || got[0].Code != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	states(t, c, a.PIDs, StateCheckpointed)
	if _, err := c.Restore(ctx, a.PIDs, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call after that: %v", err)
	}
	states(t, c, a.PIDs, StateCheckpointed)
	rescue(t, c, a.PIDs)
	a.Works()
}

func TestNothingAsked(t *testing.T) {
	r := newRig(t, 1)
	c := r.start()
	if got, err := c.Lock(t.Context(), nil, time.Second); len(got) != 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, pids := range [][]int{{0}, {-1}, {5, 5}} {
		if _, err := c.Unlock(t.Context(), pids); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", pids, err)
		}
	}
	if _, err := c.Restore(t.Context(), []int{1}, []DevicePair{{"GPU-1", "0"}}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if _, err := c.Lock(t.Context(), []int{1 << 22}, 1000*time.Hour); err != nil {
		t.Error(err)
	}
}
