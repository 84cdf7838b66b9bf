package gpu

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// attempts are how long to wait for several processes before those that stand are let go on and it is tried again: kernels that
// wait for those of another process, as NCCL's do, never end once that process has been stopped ahead of its own.
var attempts = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond}

// inAttempts has something done to processes before the timeout: to several, who may wait for each other, in short attempts, between which they are let go on for a moment,
// of a length by chance: what they do may come as regularly as the attempts. late is the error of those that had work still.
func (e *Engine) inAttempts(ctx context.Context, several bool, try func(bound time.Duration) (late, err error), letGo func() error) error {
	for attempt, deadline := 0, time.Now().Add(e.Timeout); ; attempt++ {
		left := time.Until(deadline)
		bound := left
		if several {
			bound = min(left, attempts[attempt%len(attempts)])
		}
		late, err := try(bound)
		if err != nil || late == nil {
			return err
		}
		if bound == left {
			return late
		}
		if err := letGo(); err != nil {
			return err
		}
		if err := wait(ctx, rand.N(30*time.Millisecond)); err != nil {
			return err
		}
	}
}

// lock has all processes finish their work and locks them, and gives those that have not ended meanwhile.
func (e *Engine) lock(ctx context.Context, fresh []cudaProcess) (locked []cudaProcess, err error) {
	e.held = append(e.held, fresh...)
	err = e.inAttempts(ctx, len(fresh) > 1, func(bound time.Duration) (late, err error) {
		var unfinished []string
		if locked, unfinished, err = e.tryLock(ctx, fresh, bound); len(unfinished) > 0 {
			late = deadlineError(e.Timeout, unfinished)
		}
		return late, err
	}, func() error { return e.letGo(ctx, locked) })
	return locked, err
}

// tryLock locks the processes, and tells those that are locked and those that were still at work.
func (e *Engine) tryLock(ctx context.Context, fresh []cudaProcess, wait time.Duration) (locked []cudaProcess, late []string, err error) {
	outcomes, err := ask(ctx, &e.line, wait+askTime, func(k *device.Helper) ([]device.Outcome, error) { return k.Lock(ctx, pidsOf(fresh), wait) })
	if err != nil {
		return nil, nil, err
	}
	for i, o := range outcomes {
		p := fresh[i]
		switch {
		case o.Code == 0:
			locked = append(locked, p)
		case !e.host().alive(p.PID): // of its own accord
		case o.Code == device.NotReady:
			late = append(late, e.working(p))
		default:
			return nil, nil, callError(p, o)
		}
	}
	return locked, late, nil
}

// letGo unlocks them for a moment.
func (e *Engine) letGo(ctx context.Context, locked []cudaProcess) error {
	if len(locked) == 0 {
		return nil
	}
	outcomes, err := ask(ctx, &e.line, askTime, func(k *device.Helper) ([]device.Outcome, error) { return k.Unlock(ctx, pidsOf(locked)) })
	if err != nil {
		return err
	}
	for i, o := range outcomes {
		if o.Code != 0 && e.host().alive(locked[i].PID) {
			return callError(locked[i], o)
		}
	}
	return nil
}

// interrupt asks kernels to return early, for the call gate and for the driver: to find the flags takes a look at all of a process's mappings. That is a help and no condition:
// what does not heed it has its deadline. It gives the processes that were asked.
func (e *Engine) interrupt(ctx context.Context, all []cudaProcess) (asked []cudaProcess) {
	if e.Raise == nil {
		return nil
	}
	for _, p := range all {
		raised, err := e.Raise(p.PID, 2*e.Timeout+askTime)
		if err != nil {
			log.G(ctx).WithError(err).WithField("pid", p.PID).Warn("interrupt kernels")
		}
		if raised > 0 {
			asked = append(asked, p)
		}
	}
	return asked
}

func (e *Engine) uninterrupt(ctx context.Context, all []cudaProcess) {
	for _, p := range all {
		if _, err := e.Lower(p.PID); err != nil { // it ends with its lease
			log.G(ctx).WithError(err).WithField("pid", p.PID).Warn("let kernels run again")
		}
	}
}

// stop has processes run no code of their programs until they are unlocked, see [device.Helper.Stop].
func stop(ctx context.Context, l *line, all []cudaProcess) error {
	if len(all) == 0 {
		return nil
	}
	_, err := ask(ctx, l, askTime, func(k *device.Helper) (none struct{}, err error) { return none, k.Stop(ctx, pidsOf(all)) })
	return err
}

// yield lets all go on that were stopped.
func yield(ctx context.Context, l *line) error {
	_, err := ask(ctx, l, askTime, func(k *device.Helper) (none struct{}, err error) { return none, k.Yield(ctx) })
	return err
}

// checkpoint moves what locked processes have on devices into their memory. Before, while they have their device files still and fork no more, their children give theirs up.
func (e *Engine) checkpoint(ctx context.Context, locked []cudaProcess) error {
	if err := stop(ctx, &e.line, locked); err != nil {
		return err
	}
	if err := e.disown(ctx, locked); err != nil {
		return err
	}
	if err := e.unmanaged(locked); err != nil {
		return err
	}
	outcomes, err := ask(ctx, &e.line, moveTime(memoryOf(locked)), func(k *device.Helper) ([]device.Outcome, error) { return k.Checkpoint(ctx, pidsOf(locked)) })
	if err != nil {
		return err
	}
	for i, o := range outcomes {
		p := locked[i]
		switch {
		case o.Code == 0:
		case !e.host().alive(p.PID):
			return endedError(p.Process)
		case o.Code == device.NotSupported:
			return unsupportedError(p.Process, e.record.Driver)
		default:
			return callError(p, o)
		}
	}
	return nil
}

// unmanaged refuses processes that have managed memory of the driver's. The driver refuses to save it, but for a pool that is empty: then it saves the process, and cannot restore it.
func (e *Engine) unmanaged(locked []cudaProcess) error {
	for _, p := range locked {
		managed, err := e.host().managed(p.PID)
		if ended(err) != nil {
			return err
		}
		if managed {
			return unsupportedError(p.Process, e.record.Driver)
		}
	}
	return nil
}

func pidsOf(all []cudaProcess) []int {
	pids := make([]int, len(all))
	for i, p := range all {
		pids[i] = p.PID
	}
	return pids
}

func memoryOf(all []cudaProcess) (bytes int64) {
	for _, p := range all {
		bytes += p.memory()
	}
	return bytes
}
