package restore

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

// Listener is a command's end of the report of a restore process, or of a checkpoint process. R is the type of the result.
type Listener[R any] struct {
	hooks    Hooks
	debug    func(line string) // nil: nothing is logged for debugging
	listener *channel.Listener
	waits    map[string]string // what each activity waits for; guarded by mu

	mu        sync.Mutex
	from      *channel.Channel // the process; guarded by mu
	heard     bool             // a process has reported something; guarded by mu
	last      *R               // guarded by mu
	ran, at   time.Time        // when the first result came, and the last; guarded by mu
	failed    *failure.Error   // guarded by mu
	state     *worker.State    // guarded by mu
	runsOn    bool             // failed does no harm to the container; guarded by mu
	ended     bool             // the process has ended; guarded by mu
	calledOff bool             // guarded by mu
	closed    bool             // guarded by mu
	changed   chan struct{}    // closed when one of these changes
}

// Listen waits in the directory dir for a process that reports, and passes on what it reports.
func Listen[R any](dir string, hooks Hooks, debug func(line string)) (*Listener[R], error) {
	at, err := worker.ListenForReport(dir)
	if err != nil {
		return nil, err
	}
	l := newListener[R](hooks, debug)
	l.listener = at
	go l.accept()
	return l, nil
}

// Attend returns a listener for the process at the other end of c.
func Attend[R any](c *channel.Channel, hooks Hooks) *Listener[R] {
	l := newListener[R](hooks.OrNobody(), nil)
	go l.attend(c)
	return l
}

func newListener[R any](hooks Hooks, debug func(line string)) *Listener[R] {
	return &Listener[R]{hooks: hooks, debug: debug, waits: map[string]string{}, changed: make(chan struct{})}
}

// accept hears one process after the other. Another takes the place of the first where containerd is restarted before a container runs.
func (l *Listener[R]) accept() {
	for {
		c, err := l.listener.Accept(context.Background())
		if err != nil {
			l.set(func() { l.ended = true })
			return
		}
		l.attend(c)
	}
}

// attend receives what a process reports, until the process ends.
func (l *Listener[R]) attend(c *channel.Channel) {
	l.set(func() {
		l.from, l.heard, l.ended = c, true, false
		if l.calledOff {
			_ = c.HangUp() // one that has ended needs none
		}
		if l.closed {
			_ = c.Close()
		}
	})
	for {
		var n worker.News
		fds, err := c.Receive(&n)
		if err != nil {
			break
		}
		channel.Close(fds) // it sends none
		if n.Step != nil {
			go l.step(c, *n.Step) // which may wait for other hosts
		}
		l.note(n)
	}
	l.set(func() {
		l.ended = true
		_ = c.Close()
	})
}

// CallOff has the process undo what it did, unless it is too late for that. What it says is heard further on. nil does not listen.
func (l *Listener[R]) CallOff() {
	if l == nil {
		return
	}
	l.set(func() {
		l.calledOff = true
		if l.from != nil {
			_ = l.from.HangUp() // one that has ended needs none
		}
	})
}

// Close is CallOff, and nothing is heard any more. nil does not listen.
func (l *Listener[R]) Close() {
	if l == nil {
		return
	}
	if l.listener != nil {
		_ = l.listener.Close() // it may be closed
	}
	l.set(func() {
		l.closed = true
		if l.from != nil {
			_ = l.from.Close()
		}
	})
}

// set makes a change, and wakes those that wait for one.
func (l *Listener[R]) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

// note passes on what is new.
func (l *Listener[R]) note(n worker.News) {
	var result *R
	if n.Result != nil {
		if err := json.Unmarshal(n.Result, &result); err != nil {
			return
		}
	}
	l.pass(n)
	l.set(func() {
		if n.Failed != nil {
			l.failed, l.state, l.runsOn = n.Failed, n.State, n.RunsOn
		}
		if result != nil {
			l.last, l.at = result, time.Now()
			if l.ran.IsZero() {
				l.ran = l.at
			}
		}
	})
}

// pass calls the hooks.
func (l *Listener[R]) pass(n worker.News) {
	switch {
	case n.Progress != nil && l.hooks.Progress != nil:
		l.hooks.Progress(n.Progress.What, n.Progress.Done, n.Progress.Total)
	case n.Ended != "":
		l.hooks.Ended(n.Ended)
	case n.Waits != nil:
		l.waitsFor(*n.Waits)
	case n.Warning != "":
		l.hooks.Warn("%s", n.Warning)
	case n.Saying != "":
		l.hooks.Say("%s", n.Saying)
	case n.Log != "" && l.debug != nil:
		l.debug(n.Log)
	}
}

// step has the process wait at a step until the hook has returned. An error of the hook calls the work off.
func (l *Listener[R]) step(from *channel.Channel, at worker.Reached) {
	permission, err := l.hooks.Pass(context.Background(), at)
	if err == nil {
		permission.Step = at.Step
		err = from.Send(permission)
	}
	if err != nil {
		l.CallOff()
	}
}

// waitsFor keeps what an activity waits for, for the hook that asks for it.
func (l *Listener[R]) waitsFor(w worker.Waits) {
	l.mu.Lock()
	_, known := l.waits[w.Activity]
	l.waits[w.Activity] = w.For
	l.mu.Unlock()
	if known {
		return
	}
	l.hooks.WaitsFor(w.Activity, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.waits[w.Activity]
	})
}

// Await waits for a result that is wanted, and returns it, or why none comes.
func (l *Listener[R]) Await(ctx context.Context, is func(*R) bool) (*R, error) {
	for {
		l.mu.Lock()
		last, failed, ended, changed := l.last, l.failed, l.ended, l.changed
		l.mu.Unlock()
		switch {
		case last != nil && is(last):
			r := *last
			return &r, nil
		case failed != nil:
			return nil, failed
		case ended:
			return nil, worker.ErrDied
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

const (
	// lastWordTime bounds how long a command waits for the end of a process that has failed.
	lastWordTime = 5 * time.Second
	// firstWordTime bounds how long a command waits for the first word of a process.
	firstWordTime = 50 * time.Millisecond
)

// Because returns what the process has said of a failure, or that it has died without a word, else err. The shim has ended the process before it answers.
func (l *Listener[R]) Because(ctx context.Context, err error) error {
	if !l.HeardSoon() {
		return err
	}
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWordTime)
	defer cancel()
	_, said := l.Await(waiting, func(*R) bool { return false })
	if waiting.Err() != nil || errors.Is(said, worker.ErrDied) && (daemon.ShimGone(err) || daemon.Gone(err)) { // it ends with its shim
		return err
	}
	return said
}

// HeardSoon is Heard, and waits for the first word of a process that is being started.
func (l *Listener[R]) HeardSoon() bool {
	for deadline := time.Now().Add(firstWordTime); !l.Heard() && time.Now().Before(deadline); {
		time.Sleep(firstWordTime / 10)
	}
	return l.Heard()
}

// Heard reports whether a process has reported anything.
func (l *Listener[R]) Heard() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// Last returns the last result, the failure that has been reported, and the state of the container after that; nil: there is none.
func (l *Listener[R]) Last() (*R, *failure.Error, *worker.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, l.failed, l.state
}

// IsHarmless reports whether what has failed does no harm to the container.
func (l *Listener[R]) IsHarmless() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runsOn
}

// Since returns how long it has taken until the first result, and until the last, seconds.
func (l *Listener[R]) Since(begun time.Time) (first, last float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ran.Sub(begun).Seconds(), l.at.Sub(begun).Seconds()
}
