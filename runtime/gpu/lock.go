package gpu

import (
	"context"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// lock has all processes finish their work and wait at the door, and gives those that have not ended meanwhile.
func (e *Engine) lock(ctx context.Context, fresh []cudaProcess) ([]cudaProcess, error) {
	k, err := e.line.keeper(ctx)
	if err != nil {
		return nil, err
	}
	e.held = append(e.held, fresh...)
	e.interrupt(ctx, fresh)
	outcomes, err := within(k, e.Timeout+askTime, func() ([]keeper.Outcome, error) { return k.Lock(ctx, pidsOf(fresh), e.Timeout) })
	// Those that wait at the door launch nothing, and those that were late shall go on.
	e.uninterrupt(ctx, fresh)
	if err != nil {
		return nil, err
	}
	late := &DeadlineError{Timeout: e.Timeout}
	var locked []cudaProcess
	for i, o := range outcomes {
		p := fresh[i]
		switch {
		case o.Code == 0:
			locked = append(locked, p)
		case !e.host().alive(p.PID): // of its own accord
		case o.Code == keeper.NotReady:
			late.Processes = append(late.Processes, Late{p.Process, label(e.record.known(), p.uuids())})
		default:
			return nil, callError(p, o)
		}
	}
	if len(late.Processes) > 0 {
		return nil, late
	}
	return locked, nil
}

// interrupt asks kernels to return early. That is a help and no condition: what does not heed it has its deadline.
func (e *Engine) interrupt(ctx context.Context, all []cudaProcess) {
	if e.Interrupts == nil {
		return
	}
	for _, p := range all {
		if err := e.Interrupts.Raise(p.PID, e.Timeout+askTime); err != nil {
			log.G(ctx).WithError(err).WithField("pid", p.PID).Warn("interrupt kernels")
		}
	}
}

func (e *Engine) uninterrupt(ctx context.Context, all []cudaProcess) {
	if e.Interrupts == nil {
		return
	}
	for _, p := range all {
		if err := e.Interrupts.Lower(p.PID); err != nil { // it ends with its lease
			log.G(ctx).WithError(err).WithField("pid", p.PID).Warn("let kernels run again")
		}
	}
}

// checkpoint moves what locked processes have on devices into their memory.
func (e *Engine) checkpoint(ctx context.Context, locked []cudaProcess) error {
	k, err := e.line.keeper(ctx)
	if err != nil {
		return err
	}
	outcomes, err := within(k, moveTime(memoryOf(locked)), func() ([]keeper.Outcome, error) { return k.Checkpoint(ctx, pidsOf(locked)) })
	if err != nil {
		return err
	}
	for i, o := range outcomes {
		p := locked[i]
		switch {
		case o.Code == 0:
		case !e.host().alive(p.PID):
			return &EndedError{p.Process}
		case o.Code == keeper.NotSupported:
			return &UnsupportedError{Process: p.Process, Driver: e.record.Driver}
		default:
			return callError(p, o)
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

func callError(p cudaProcess, o keeper.Outcome) *CallError {
	return &CallError{Process: p.Process, Call: o.Call, Code: o.Code, Name: o.Name}
}
