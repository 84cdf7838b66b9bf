package driver

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// ledger makes the driver's calls and remembers what they did, so that it can be undone.
type ledger struct {
	driver API
	mu     sync.Mutex
	held   map[int]State // Locked or Checkpointed; guarded by mu
}

func newLedger(d API) *ledger { return &ledger{driver: d, held: map[int]State{}} }

// each makes the call for all processes side by side. A lock's timeout is one deadline for all.
func (l *ledger) each(pids []int, c Call) []Outcome {
	deadline := time.Now().Add(c.Timeout)
	outcomes := make([]Outcome, len(pids))
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			own := c
			if c.Function == Lock {
				own.Timeout = max(time.Until(deadline), time.Millisecond)
			}
			outcomes[i] = l.do(pid, own)
		})
	}
	all.Wait()
	return outcomes
}

func (l *ledger) do(pid int, c Call) Outcome {
	begin := time.Now()
	code := l.driver.Do(pid, c)
	o := Outcome{PID: pid, Seconds: time.Since(begin).Seconds(), Call: string(c.Function), Code: code}
	if code != 0 {
		o.Name = l.driver.Name(code)
		return o
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c.Function {
	case Lock, Restore: // a restored process is a locked one
		l.held[pid] = Locked
	case Checkpoint:
		l.held[pid] = Checkpointed
	case Unlock:
		delete(l.held, pid)
	}
	return o
}

func (l *ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.held)
}

// undo lets all processes go on that are held, side by side, and gives the calls it made. Processes that are gone need none.
func (l *ledger) undo() []Outcome {
	l.mu.Lock()
	held := maps.Clone(l.held)
	l.mu.Unlock()
	pids := slices.Sorted(maps.Keys(held))
	made := make([][]Outcome, len(pids))
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			if held[pid] == Checkpointed {
				made[i] = append(made[i], l.do(pid, Call{Function: Restore}))
			}
			if len(failures(made[i])) == 0 {
				made[i] = append(made[i], l.do(pid, Call{Function: Unlock}))
			}
			if len(failures(made[i])) > 0 && l.driver.State(pid) == None {
				made[i] = nil
			}
		})
	}
	all.Wait()
	return slices.Concat(made...)
}
