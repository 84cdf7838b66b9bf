package shim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
)

// in returns a life in a phase.
func in(p phase) *life { return &life{phase: p} }

// admit is [life.admit] of a call that is to be admitted.
func admit(t *testing.T, l *life, k call) *admission {
	t.Helper()
	a, err := l.admit(t.Context(), k, "c")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// later has a call admitted in the background.
func later(t *testing.T, l *life, k call) <-chan *admission {
	t.Helper()
	got := make(chan *admission, 1)
	go func() {
		a, err := l.admit(context.Background(), k, "c")
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	return got
}

// waits fails the test if a call is admitted.
func waits(t *testing.T, what string, got <-chan *admission) {
	t.Helper()
	select {
	case <-got:
		t.Fatal(what, "was admitted")
	case <-time.After(20 * time.Millisecond):
	}
}

// TestAnswers has each call made in each phase: it passes beside others, or alone, or waits, or is an error of the kind FailedPrecondition. What waits passes when the container runs.
func TestAnswers(t *testing.T) {
	for p := range phases {
		for k := range calls {
			l := in(p)
			holder := &admission{life: l, from: running, alone: true}
			var ctx context.Context
			if ctx, holder.abort = context.WithCancelCause(t.Context()); p == restoring || p == loading || p == saving || p == copying || p == resuming {
				l.holder = holder
			}
			short, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
			a, err := l.admit(short, k, "c")
			stop()
			answer := answers[p][k]
			switch answer {
			case pass, abort:
				if err != nil || a.alone || l.now() != p {
					t.Errorf("call %d in phase %d: %+v, %v, then phase %d", k, p, a, err, l.now())
				}
			case alone:
				if err != nil || !a.alone || l.now() != during[k] {
					t.Errorf("call %d in phase %d: %+v, %v, then phase %d", k, p, a, err, l.now())
				}
				a.leave()
				if l.now() != p {
					t.Errorf("call %d in phase %d leaves phase %d", k, p, l.now())
				}
			case wait, end:
				if !errors.Is(err, context.DeadlineExceeded) || l.now() != p {
					t.Errorf("call %d in phase %d: %v", k, p, err)
				}
				l.set(func() { l.phase, l.holder = running, nil })
				admit(t, l, k).leave()
			case refuse:
				if !errors.Is(err, errdefs.ErrFailedPrecondition) {
					t.Errorf("call %d in phase %d: %v", k, p, err)
				}
			default:
				t.Errorf("call %d in phase %d has no answer", k, p)
			}
			if broken := answer == abort || answer == end; broken != (ctx.Err() != nil) || broken && context.Cause(ctx) != causes[k] {
				t.Errorf("call %d in phase %d ends another with %v", k, p, context.Cause(ctx))
			}
			holder.abort(nil)
		}
	}
}

// TestAlone: a call that is to have the container for itself waits for those that use it, and those that come later wait for it. Another checkpoint is refused.
func TestAlone(t *testing.T) {
	l := in(running)
	first := admit(t, l, toPause)
	saves := later(t, l, toSave)
	waits(t, "a checkpoint beside a pause", saves)
	updates := later(t, l, toUse)
	waits(t, "an update beside a checkpoint that waits", updates)
	if _, err := l.admit(t.Context(), toSave, "c"); !errors.Is(err, failure.ErrBusy) {
		t.Errorf("a second checkpoint: %v", err)
	}
	first.leave()
	save := <-saves
	waits(t, "an update beside a checkpoint", updates)
	save.over(parked)
	(<-updates).leave()
	if l.now() != parked {
		t.Errorf("phase %d", l.now())
	}
}

// TestAloneGivesUp: a call that waits for others and gives up leaves the phase as it was.
func TestAloneGivesUp(t *testing.T) {
	l := in(running)
	first := admit(t, l, toPause)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.admit(short, toSave, "c"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	admit(t, l, toUse).leave()
	first.leave()
	admit(t, l, toSave).leave()
}

// TestBrokenOff: who kills or deletes a container ends what has it for itself, by its context and by what it says, until it is over.
func TestBrokenOff(t *testing.T) {
	for k, p := range map[call]phase{toKill: created, toRemove: created} {
		l := in(p)
		restores, stopped := admit(t, l, toRestore), make(chan struct{}, 100)
		restores.stops(func() { stopped <- struct{}{} })
		ends := later(t, l, k)
		<-stopped
		<-stopped
		if cause := context.Cause(restores.ctx); cause != causes[k] {
			t.Errorf("it ends with %v", cause)
		}
		waits(t, "a call beside what it has broken off", ends)
		restores.over(ended)
		if a := <-ends; !a.broken {
			t.Error("it has broken nothing off")
		}
	}
}

// TestCopying: a checkpoint that does not need the container any more keeps another checkpoint out, and nothing else. A deletion ends it, and waits for its end.
func TestCopying(t *testing.T) {
	l := in(running)
	save := admit(t, l, toSave)
	updates := later(t, l, toUse)
	save.become(copying)
	(<-updates).leave()
	admit(t, l, toPause).leave()
	if _, err := l.admit(t.Context(), toSave, "c"); !errors.Is(err, failure.ErrBusy) {
		t.Errorf("a second checkpoint: %v", err)
	}
	removes := later(t, l, toRemove)
	<-save.ctx.Done()
	waits(t, "a deletion beside a checkpoint", removes)
	save.over(running)
	<-removes
}

// TestFilling: a checkpoint waits until all memory is there. If it does not come, the reason is why there is no checkpoint.
func TestFilling(t *testing.T) {
	l := in(filling)
	saves := later(t, l, toSave)
	waits(t, "a checkpoint of a container that lacks memory", saves)
	l.move(filling, running)
	(<-saves).leave()
	l.lose(errors.New("too late"))
	if l.now() != running {
		t.Errorf("phase %d", l.now())
	}
	l, lost := in(filling), checkpoint.Lost("restore", "c", errors.New("no memory"))
	l.lose(lost)
	if _, err := l.admit(t.Context(), toSave, "c"); !errors.Is(err, lost) {
		t.Errorf("got %v", err)
	}
}
