package gpu

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// discover returns the container's processes that have something on GPUs and are not held yet, and those of which the driver
// says nothing. It is asked only of those that may have something.
func (e *Engine) discover(ctx context.Context) (found []cudaProcess, silent []Process, err error) {
	pids, err := e.PIDs(ctx)
	if err != nil {
		return nil, nil, err
	}
	var candidates []int
	for _, pid := range pids {
		if slices.ContainsFunc(e.held, func(p cudaProcess) bool { return p.PID == pid }) {
			continue
		}
		touches, err := e.host().touches(pid)
		if ended(err) != nil {
			return nil, nil, err
		}
		if touches {
			candidates = append(candidates, pid)
		}
	}
	if len(candidates) == 0 {
		return nil, nil, nil
	}
	slices.Sort(candidates)
	states, err := ask(ctx, &e.line, askTime, func(k *device.Helper) (map[int]device.ProcessState, error) { return k.States(ctx, candidates) })
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range candidates {
		p, err := e.host().process(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		switch states[pid] {
		case device.StateRunning:
			found = append(found, cudaProcess{Process: p})
		case device.StateLocked, device.StateCheckpointed, device.StateFailed:
			return nil, nil, stateError(p, states[pid])
		default:
			silent = append(silent, p)
		}
	}
	return found, silent, nil
}

// facts asks for them, and makes sure that processes of which the driver does not tell a state indeed have nothing on GPUs.
func (e *Engine) facts(ctx context.Context, silent []Process) (device.Facts, error) {
	facts, err := ask(ctx, &e.line, askTime, func(k *device.Helper) (device.Facts, error) { return k.Facts(ctx) })
	if err != nil {
		return device.Facts{}, err
	}
	for _, p := range silent {
		if slices.ContainsFunc(facts.Uses, func(u device.DeviceUse) bool { return u.PID == p.PID }) && e.host().alive(p.PID) {
			return device.Facts{}, &SilentError{p}
		}
	}
	return facts, nil
}
