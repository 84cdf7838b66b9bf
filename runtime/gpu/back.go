package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// helpers is how many may die, or not start, before it is given up.
const helpers = 3

// How long to wait before something is tried again, and for how long that is done: for memory of a device that another process has
// taken meanwhile, and for a driver that is busy with a process.
const (
	pause    = time.Second
	patience = 30 * time.Second
	moment   = 200 * time.Millisecond // after a helper has died: the driver may be about to begin what it was asked
)

// notYet says that a process could not be brought back, is as it was, and may be brought back later.
type notYet struct{ error }

// Unwrap returns the cause.
func (e notYet) Unwrap() error { return e.error }

// bringBack restores and unlocks processes, whatever state they are in, and does not end before that is done or cannot be
// done. It goes by the state that the driver tells alone, so it does not matter which process did what before, or died over it. An
// error is a [*checkpoint.LossError], or what could not be restored is as it was: no helper could be started, or a
// device has no room for it. makeRoom is called when something cannot be brought back for now; nil: there is nothing to give up.
func bringBack(ctx context.Context, l *line, host proc, all []cudaProcess, pairs []device.DevicePair, makeRoom func()) error {
	ctx = context.WithoutCancel(ctx)
	died := 0
	var wait time.Duration // before the next attempt
	for start := time.Now(); ; time.Sleep(wait) {
		err := bringBackOnce(ctx, l, host, all, pairs)
		var loss *checkpoint.LossError
		var later notYet
		switch {
		case err == nil && l.doubt:
			l.doubt, wait = false, moment
			continue // they run; see whether they do so still
		case err == nil:
			return nil
		case errors.As(err, &loss):
			return err
		case errors.As(err, &later):
			if time.Since(start) >= patience {
				return err
			}
			if makeRoom != nil {
				began := time.Now()
				makeRoom()
				start = start.Add(time.Since(began)) // it may wait for a registry
			}
			wait = pause
		default: // the helper's own
			started := l.open != nil
			l.drop()
			wait = moment
			if died++; died == helpers && started {
				return &checkpoint.LossError{Err: err}
			} else if died == helpers {
				return err
			}
		}
		log.G(ctx).WithError(err).Warn("load GPUs, again")
	}
}

func bringBackOnce(ctx context.Context, l *line, host proc, all []cudaProcess, pairs []device.DevicePair) (err error) {
	var alive []cudaProcess
	for _, p := range all {
		if host.alive(p.PID) {
			alive = append(alive, p)
		}
	}
	if len(alive) == 0 {
		return nil
	}
	if err := stop(ctx, l, alive); err != nil {
		return err
	}
	// What a helper that died has begun ends first: the driver tells no state before.
	states, err := ask(ctx, l, moveTime(memoryOf(alive)), func(k *device.Helper) (map[int]device.ProcessState, error) { return k.States(ctx, pidsOf(alive)) })
	if err != nil {
		return err
	}
	defer func() {
		if err == nil { // also those go on that were not locked
			err = yield(ctx, l)
		}
	}()
	var saved, locked []cudaProcess
	for _, p := range alive {
		switch states[p.PID] {
		case device.StateRunning:
		case device.StateLocked:
			locked = append(locked, p)
		case device.StateCheckpointed:
			saved = append(saved, p)
		case device.StateFailed:
			return &checkpoint.LossError{Err: fmt.Errorf("%s: the driver has given it up", p)}
		default:
			// Nothing, if it has become another program meanwhile.
			if touches, err := host.touches(p.PID); err == nil && touches && host.alive(p.PID) {
				return notYet{fmt.Errorf("%s: the driver does not tell its state", p)}
			}
		}
	}
	if len(saved) > 0 {
		outcomes, err := ask(ctx, l, moveTime(memoryOf(saved)), func(k *device.Helper) ([]device.Outcome, error) { return k.Restore(ctx, pidsOf(saved), pairs) })
		if err := judge(host, saved, outcomes, err); err != nil {
			return err
		}
		locked = append(locked, saved...)
	}
	// Only when all are there: those that work together go on together.
	if len(locked) > 0 {
		outcomes, err := ask(ctx, l, askTime, func(k *device.Helper) ([]device.Outcome, error) { return k.Unlock(ctx, pidsOf(locked)) })
		return judge(host, locked, outcomes, err)
	}
	return nil
}

// allRun returns a [*checkpoint.LossError] if processes that had something on GPUs have ended while it was moved back. [bringBack] passes over those: the others go on.
func allRun(host proc, all []cudaProcess) error {
	var ended []string
	for _, p := range all {
		if !host.alive(p.PID) {
			ended = append(ended, p.String())
		}
	}
	if len(ended) == 0 {
		return nil
	}
	return &checkpoint.LossError{Others: true, Err: failure.New(errdefs.ErrInternal, "see the kernel's log: the kernel may have had no memory",
		"load its GPUs: %s has ended meanwhile", list(ended))}
}

// judge returns the worst failure among processes that live. Only want of memory, and another state than was told, may pass.
func judge(host proc, all []cudaProcess, outcomes []device.Outcome, err error) error {
	if err != nil {
		return err
	}
	var later error
	for i, o := range outcomes {
		switch {
		case o.Code == 0 || !host.alive(all[i].PID):
		case o.Code == device.OutOfMemory || o.Code == device.IllegalState:
			later = notYet{callError(all[i], o)}
		default:
			return &checkpoint.LossError{Err: callError(all[i], o)}
		}
	}
	return later
}
