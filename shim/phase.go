package shim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
)

// phase is a part of a container's life. Whether the container is paused, or its processes have ended by themselves, the stock service knows.
type phase int

const (
	preparing phase = iota // Create has not answered
	created                // it has no processes yet
	restoring              // Start restores it: CRIU makes its processes
	loading                // CRIU has made them, and they stand still: Start loads their GPUs, or ends them
	filling                // it runs, and part of its memory is still to come
	running                // it runs with all its memory, or its client has paused it
	saving                 // a checkpoint needs it
	copying                // it runs, while the checkpoint takes the rest from a copy of device memory
	parked                 // its client had paused it and has taken a checkpoint: it stands frozen, with its GPUs saved
	resuming               // it was parked, and Resume loads its GPUs; or it is taken out of a pool
	held                   // a member of a pool: it stands frozen before its first instruction
	ended                  // it was ended by a checkpoint or by a restore that has failed, or was lost
	phases
)

// call is what containerd asks, as far as the phases tell it apart.
type call int

const (
	toStart   call = iota // Start of a container that is not restored, or of an exec
	toRestore             // Start of a container that is restored
	toUse                 // Update, and Delete of an exec
	toPause               // Pause
	toResume              // Resume
	toSave                // Checkpoint
	toKill                // Kill with SIGKILL: other signals go to the stock service at once
	toRemove              // Delete
	toTake                // Update that takes it out of a pool
	calls
)

// answer is what becomes of a call.
type answer int

const (
	pass   answer = iota + 1 // it goes to the stock service, beside others
	alone                    // it waits for calls that have passed, and no other passes until it is over
	wait                     // it waits for another phase
	abort                    // it ends what has the container for itself, and passes
	end                      // it ends what has the container for itself, and waits for another phase
	refuse                   // it is an error
)

// answers says what becomes of each call in each phase.
var answers = [phases][calls]answer{
	//           start restore use   pause resume save    kill    remove take
	preparing: {pass, refuse, pass, pass, pass, refuse, pass, pass, refuse},
	created:   {pass, alone, pass, pass, pass, refuse, pass, pass, refuse},
	restoring: {wait, refuse, wait, wait, wait, refuse, end, end, refuse},
	loading:   {wait, refuse, wait, wait, wait, refuse, end, end, refuse},
	filling:   {pass, refuse, pass, wait, pass, wait, pass, pass, refuse},
	running:   {pass, refuse, pass, pass, pass, alone, pass, pass, refuse},
	saving:    {wait, refuse, wait, wait, wait, refuse, end, wait, refuse},
	copying:   {pass, refuse, pass, pass, pass, refuse, abort, end, refuse},
	parked:    {pass, refuse, pass, pass, alone, alone, pass, pass, refuse},
	resuming:  {wait, refuse, wait, wait, wait, refuse, end, wait, refuse},
	held:      {refuse, refuse, pass, refuse, refuse, refuse, pass, pass, alone},
	ended:     {pass, refuse, pass, pass, pass, refuse, pass, pass, refuse},
}

// during is the phase while a call has the container for itself.
var during = [calls]phase{toRestore: restoring, toSave: saving, toResume: resuming, toTake: resuming}

// Why a checkpoint or a restore ends that another call breaks off.
var (
	errKilled  = errors.New("the container is being killed")
	errDeleted = errors.New("the container is being deleted")

	causes = [calls]error{toKill: errKilled, toRemove: errDeleted}
)

// life is the phase of a container, and the calls that use the container.
type life struct {
	mu      sync.Mutex
	phase   phase         // guarded by mu
	passed  int           // calls under way that are beside others; guarded by mu
	holder  *admission    // the call that has the container for itself; nil: none has. Guarded by mu
	changed chan struct{} // closed when one of these changes; nil: no call waits for that. Guarded by mu
	lost    error         // why the container has ended, if it was lost; guarded by mu
}

// admission is a call that may use the container.
type admission struct {
	ctx    context.Context // of a call that has the container for itself: it ends when another call breaks that off
	alone  bool            // it has the container for itself
	from   phase           // what the phase was before
	broken bool            // it has broken off another call

	life  *life
	abort context.CancelCauseFunc
	stop  func() // ends a program that the call waits for; it is repeated until the call is over. nil: there is none. Guarded by life's mu
}

// now returns the phase.
func (l *life) now() phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase
}

// set makes a change, and wakes the calls that wait for one.
func (l *life) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// next returns a channel that is closed at the next change. l.mu is held.
func (l *life) next() <-chan struct{} {
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// move changes the phase if it is the one given.
func (l *life) move(from, to phase) {
	l.set(func() {
		if l.phase == from {
			l.phase = to
		}
	})
}

// lose ends the life of a container whose memory cannot be filled in.
func (l *life) lose(err error) {
	l.set(func() {
		if l.phase == filling {
			l.phase, l.lost = ended, err
		}
	})
}

// admit waits until the phase lets a call use the container, whose name is id. The caller ends the use by leave or over.
func (l *life) admit(ctx context.Context, k call, id string) (*admission, error) {
	in := &admission{ctx: ctx, life: l}
	var late <-chan time.Time
	for {
		a, holder, stop, changed := l.try(k, in)
		if a == refuse {
			return nil, l.refused(in.from, k, id)
		}
		var again <-chan time.Time
		if holder != nil && (a == end || a == abort) {
			holder.abort(causes[k])
			in.broken = true
			if stop != nil {
				stop()
				again = time.After(10 * time.Millisecond)
			}
		}
		switch {
		case a == pass || a == abort:
			return in, nil
		case a == alone:
			if err := in.awaitOthers(); err != nil {
				return nil, err
			}
			return in, nil
		case in.from == filling && late == nil:
			late = time.After(fillTime)
		}
		select {
		case <-changed:
		case <-again:
		case <-late:
			return nil, failure.New(errdefs.ErrUnavailable, "try again later, or restore with cryo restore --eager",
				"container %s was restored and its memory is still being filled in after %s", id, fillTime)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// refused returns the error for a call that a phase refuses.
func (l *life) refused(p phase, k call, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case k == toTake:
		return notInPool(id)
	case p == held:
		return inPool(id)
	case k == toRestore && (p == restoring || p == loading):
		return fmt.Errorf("restore %s: it is being restored already: %w", id, errdefs.ErrFailedPrecondition)
	case k == toRestore && p == ended:
		return failure.New(errdefs.ErrFailedPrecondition, "delete the task, and restore again", "restore %s: it was restored before, and has ended or failed", id)
	case k == toRestore:
		return fmt.Errorf("restore %s: it has been restored already: %w", id, errdefs.ErrFailedPrecondition)
	case p == preparing || p == created:
		return checkpoint.NotRunning(id, "created")
	case p == restoring || p == loading:
		return checkpoint.NotRunning(id, "being restored")
	case p == ended && l.lost != nil:
		return l.lost
	case p == ended:
		return checkpoint.NotRunning(id, "stopped")
	}
	return checkpoint.Busy(id)
}

// try admits a call if the phase lets it use the container, and returns what becomes of it, what has the container for itself, and a channel that is closed at the next change.
func (l *life) try(k call, in *admission) (a answer, holder *admission, stop func(), changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if holder = l.holder; holder != nil {
		stop = holder.stop
	}
	a, in.from = answers[l.phase][k], l.phase
	switch a {
	case pass, abort:
		l.passed++
	case alone:
		in.ctx, in.abort = context.WithCancelCause(in.ctx)
		in.alone, l.holder, l.phase = true, in, during[k]
	}
	return a, holder, stop, l.next()
}

// awaitOthers waits until no other call uses the container.
func (in *admission) awaitOthers() error {
	l := in.life
	for {
		l.mu.Lock()
		others, changed := l.passed, l.next()
		l.mu.Unlock()
		if others == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-in.ctx.Done():
			in.leave()
			return context.Cause(in.ctx)
		}
	}
}

// become changes the phase of a container that the call has for itself.
func (in *admission) become(p phase) { in.life.set(func() { in.life.phase = p }) }

// stops has others that break the call off call stop until it is over.
func (in *admission) stops(stop func()) { in.life.set(func() { in.stop = stop }) }

// leave ends the use. The phase is what it was before.
func (in *admission) leave() { in.over(in.from) }

// over ends the use. If the call had the container for itself, the phase is next.
func (in *admission) over(next phase) {
	l := in.life
	l.set(func() {
		if !in.alone {
			l.passed--
			return
		}
		l.phase, l.holder = next, nil
	})
	if in.abort != nil {
		in.abort(nil)
	}
}
