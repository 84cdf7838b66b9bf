package gpu

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// hasten makes waits short for a test.
func hasten(t *testing.T) {
	t.Helper()
	beforePause, beforeMoment, beforePatience, beforeAsk, beforeStart, beforeSlowest := pause, moment, patience, askTime, startTime, slowest
	pause, moment, patience, askTime, startTime, slowest = time.Millisecond, time.Millisecond, 200*time.Millisecond, 300*time.Millisecond, time.Second, 1<<50
	t.Cleanup(func() {
		pause, moment, patience, askTime, startTime, slowest = beforePause, beforeMoment, beforePatience, beforeAsk, beforeStart, beforeSlowest
	})
}

func TestSaveAndLoad(t *testing.T) {
	w := newWorld(t, 101, 102, 103)
	w.states[103], w.facts.Uses = driver.None, w.facts.Uses[:2] // has loaded the library, and nothing else
	w.process(104)
	w.write("proc/104/maps", plainMaps)
	w.end(104)
	e := w.engine()
	e.CDI = []string{"nvidia.com/gpu=0"}
	saved, err := e.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if saved.Since.IsZero() || saved.Lock <= 0 || saved.Save <= 0 {
		t.Errorf("times are %+v", saved)
	}
	if w.states[101] != driver.Checkpointed || w.states[102] != driver.Checkpointed {
		t.Errorf("states %v", w.states)
	}
	dir := t.TempDir()
	if err := e.Record(dir); err != nil {
		t.Fatal(err)
	}
	r, err := ReadRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Devices) != 1 || r.Devices[0].UUID != uuidA || r.Devices[0].Used != 2<<30 || len(r.Processes) != 2 || r.Processes[1].PID != 2 ||
		r.Processes[1].Memory != 1<<30 || r.Driver != "580.159.04" || r.CDI[0] != "nvidia.com/gpu=0" || r.Forced[0] != "gpu-several" {
		t.Errorf("record %+v", r)
	}
	if err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := w.steps("lock", "checkpoint", "restore", "unlock"), "lock 101, lock 102, checkpoint 101, checkpoint 102, restore 101, restore 102, unlock 101, unlock 102"; got != want {
		t.Errorf("did %s, want %s", got, want)
	}
	if w.started != 1 {
		t.Errorf("%d helpers for one checkpoint", w.started)
	}
	w.settled()
}

// TestParked: what was saved long ago is loaded by another helper.
func TestParked(t *testing.T) {
	w := newWorld(t, 101)
	e := w.engine()
	if _, err := e.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Release()
	w.quiet()
	if w.states[101] != driver.Checkpointed {
		t.Errorf("state %s", w.states[101])
	}
	if err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settled()
}

// TestNothingOnGPUs: no helper is started for a container whose processes have nothing to do with CUDA.
func TestNothingOnGPUs(t *testing.T) {
	w := newWorld(t, 101)
	w.write("proc/101/maps", plainMaps)
	if err := removeDescriptor(w, 101); err != nil {
		t.Fatal(err)
	}
	e := w.engine()
	saved, err := e.Save(t.Context())
	if err != nil || !saved.Since.IsZero() || w.started != 0 {
		t.Errorf("%+v, %v, %d helpers", saved, err, w.started)
	}
	dir := t.TempDir()
	if err := e.Record(dir); err != nil {
		t.Fatal(err)
	}
	if r, err := ReadRecord(dir); err != nil || r == nil || len(r.Processes) != 0 || r.Driver != "580.159.04" {
		t.Errorf("record %+v, %v", r, err)
	}
	if err := e.Load(t.Context()); err != nil || w.started != 0 {
		t.Errorf("load: %v, %d helpers", err, w.started)
	}
}

// TestEveryFailure lets each call for each process fail in each way. The processes run on afterwards, or are said to be lost.
func TestEveryFailure(t *testing.T) {
	hasten(t)
	pids := []int{101, 102, 103}
	var steps []string
	for _, call := range []string{"lock", "checkpoint", "restore", "unlock"} {
		for _, pid := range pids {
			steps = append(steps, fmt.Sprintf("%s %d", call, pid))
		}
	}
	steps = append(steps, "states 0", "facts 0")
	for _, step := range steps {
		for _, how := range []string{"1", "2", "401", "600", "801", "999", "die", "die after", "hang", "cancel", "end"} {
			if strings.HasSuffix(step, " 0") && (how == "end" || how[0] >= '0' && how[0] <= '9') {
				continue
			}
			for _, always := range []bool{false, true} {
				if always && how == "end" {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, always %v", step, how, always), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, pids...)
					w.fail, w.how, w.always = step, how, always
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w.cancel = cancel
					e := w.engine()
					_, err := e.Save(ctx)
					var loss *checkpoint.LossError
					lost := errors.As(err, &loss)
					if err == nil {
						if err = e.Load(context.WithoutCancel(ctx)); err != nil {
							lost = true // the sequence ends the container
						}
					}
					// Once is never a reason to lose a process, unless the driver itself refuses to bring it back.
					call, _, _ := strings.Cut(step, " ")
					refusal := (call == "restore" || call == "unlock") && how[0] >= '0' && how[0] <= '9' && (always || how != "2" && how != "401")
					deaf := always && (how == "die" || how == "die after" || how == "hang") && call != "lock" && call != "checkpoint" && call != "facts"
					if lost && !refusal && !deaf {
						t.Errorf("lost: %v; did %q", err, w.did)
					}
					if err != nil && err.Error() == "" {
						t.Error("no reason")
					}
					if !lost {
						w.settled()
					} else {
						w.mu.Lock()
						defer w.mu.Unlock()
						w.quiet()
					}
				})
			}
		}
	}
}

// TestLate: what a dead helper had asked for comes about after all seems well.
func TestLate(t *testing.T) {
	hasten(t)
	moment = 20 * time.Millisecond
	for _, step := range []string{"lock 101", "lock 102"} {
		w := newWorld(t, 101, 102)
		w.fail, w.how = step, "die late"
		if _, err := w.engine().Save(t.Context()); err == nil {
			t.Errorf("%s: no error", step)
		}
		time.Sleep(10 * time.Millisecond)
		w.settled()
	}
}

// says tells whether there is an error with this in its message.
func says(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

// TestErrorsName: who reads the error knows which process it was.
func TestErrorsName(t *testing.T) {
	hasten(t)
	for _, test := range []struct {
		fail, how, want string
		is              func(error) bool
	}{
		{"lock 102", "600", "work still ran after 50ms: process 102 (app) on GPU 0", errdefs.IsFailedPrecondition},
		{"lock 102", "1", "process 102 (app): lock: CUDA_ERROR (1)", errdefs.IsAborted},
		{"checkpoint 102", "801", "process 102 (app) uses managed memory", errdefs.IsNotImplemented},
		{"checkpoint 102", "end", "process 102 (app) has ended", errdefs.IsAborted},
	} {
		w := newWorld(t, 101, 102)
		w.fail, w.how = test.fail, test.how
		_, err := w.engine().Save(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.want) || !test.is(err) || failure.Hint(err) == "" {
			t.Errorf("%s, %s: got %v, want %s", test.fail, test.how, err, test.want)
		}
		w.settled()
	}
}

// TestEndedBeforeTheLock: a process that goes of its own accord is none of the checkpoint's business.
func TestEndedBeforeTheLock(t *testing.T) {
	w := newWorld(t, 101, 102)
	w.fail, w.how = "lock 101", "end"
	e := w.engine()
	if _, err := e.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(e.record.Processes) != 1 {
		t.Errorf("record %+v", e.record)
	}
	if err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settled()
}

// TestStartedMeanwhile: processes that begin while others are saved are saved too, unless there is no end of them.
func TestStartedMeanwhile(t *testing.T) {
	for _, endless := range []bool{false, true} {
		w := newWorld(t, 101)
		e := w.engine()
		next, pids := 102, e.PIDs
		e.PIDs = func(ctx context.Context) ([]int, error) {
			if w.states[101] == driver.Checkpointed && (next == 102 || endless) {
				w.process(next)
				w.states[next] = driver.Running
				next++
			}
			return pids(ctx)
		}
		_, err := e.Save(t.Context())
		if says(err, "goes on starting processes") != endless || err != nil && !endless {
			t.Errorf("endless %v: %v", endless, err)
		}
		if err == nil {
			if w.states[102] != driver.Checkpointed {
				t.Errorf("state %s", w.states[102])
			}
			if err := e.Load(t.Context()); err != nil {
				t.Error(err)
			}
		}
		w.settled()
	}
}

// TestSilent: a process that has something on a GPU is never passed over.
func TestSilent(t *testing.T) {
	hasten(t)
	for _, pids := range [][]int{{101}, {101, 102}} {
		w := newWorld(t, pids...)
		w.states[101] = driver.None
		var silent *SilentError
		if _, err := w.engine().Save(t.Context()); !errors.As(err, &silent) || silent.PID != 101 {
			t.Errorf("%v: got %v", pids, err)
		}
		if got := w.steps("lock"); got != "" {
			t.Errorf("did %s", got)
		}
		w.settled()
	}
}

func TestHeldByOthers(t *testing.T) {
	for _, s := range []driver.State{driver.Locked, driver.Checkpointed, driver.Failed} {
		w := newWorld(t, 101)
		w.states[101] = s
		_, err := w.engine().Save(t.Context())
		if !says(err, "already") || !errdefs.IsFailedPrecondition(err) || w.states[101] != s {
			t.Errorf("%s: %v, and now %s", s, err, w.states[101])
		}
	}
}

// TestSilentAtFirst: a process that is just starting is asked for again.
func TestSilentAtFirst(t *testing.T) {
	hasten(t)
	w := newWorld(t, 101, 102)
	w.states[101] = driver.None
	e := w.engine()
	pids := e.PIDs
	asked := 0
	e.PIDs = func(ctx context.Context) ([]int, error) {
		if asked++; asked == 3 {
			w.states[101] = driver.Running
		}
		return pids(ctx)
	}
	if _, err := e.Save(t.Context()); err != nil || w.states[101] != driver.Checkpointed || w.states[102] != driver.Checkpointed {
		t.Fatal(err, w.states)
	}
	if err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settled()
}

// TestRefused: nothing at all is done to processes that a rule speaks against.
func TestRefused(t *testing.T) {
	w := newWorld(t, 101, 102)
	e := w.engine()
	e.Force = nil
	_, err := e.Save(t.Context())
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "process 101 (app), process 102 (app)") || !strings.Contains(failure.Hint(err), "--force gpu-several") {
		t.Errorf("got %v", err)
	}
	if got := w.steps("lock", "checkpoint", "restore", "unlock"); got != "" {
		t.Errorf("did %s", got)
	}
	w.settled()
	e.Force = []string{"gpu-sevral"}
	if _, err := e.Save(t.Context()); !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v", err)
	}
}

// TestNoHelperToLoad: what is saved stays so for want of a helper or of memory, and can be loaded later.
func TestNoHelperToLoad(t *testing.T) {
	hasten(t)
	for _, test := range []struct {
		name  string
		upset func(*world)
		calm  func(*world)
	}{
		{"no helper", func(w *world) { w.noStart = 100 }, func(w *world) { w.noStart = 0 }},
		{"no memory", func(w *world) { w.fail, w.how, w.always = "restore 102", "2", true }, func(w *world) { w.fail = "" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, 101, 102)
			e := w.engine()
			if _, err := e.Save(t.Context()); err != nil {
				t.Fatal(err)
			}
			e.Release()
			test.upset(w)
			err := e.Load(t.Context())
			var loss *checkpoint.LossError
			if err == nil || errors.As(err, &loss) {
				t.Errorf("got %v", err)
			}
			for pid, s := range w.states {
				if s == driver.Running {
					t.Errorf("process %d runs without the others", pid)
				}
			}
			test.calm(w)
			if err := e.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.settled()
		})
	}
}
