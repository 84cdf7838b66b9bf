package gpu

import (
	"context"
	"slices"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// disown has processes without a context, forked from those that are stopped and locked, give up the device files that they have inherited: see [device.Helper.Disown]. Children of such children may be born meanwhile,
// so it looks until nothing more is found.
func (e *Engine) disown(ctx context.Context, stopped []cudaProcess) error {
	for range rounds {
		pids, err := e.PIDs(ctx)
		if err != nil {
			return err
		}
		others, err := e.opening(slices.DeleteFunc(pids, e.holds))
		if err != nil || len(others) == 0 {
			return err
		}
		states, err := ask(ctx, &e.line, askTime, func(k *device.Helper) (map[int]device.ProcessState, error) { return k.States(ctx, others) })
		if err != nil {
			return err
		}
		others = slices.DeleteFunc(others, func(pid int) bool { return states[pid] != device.StateNone }) // one may have begun to use CUDA by itself
		changed, err := ask(ctx, &e.line, askTime, func(k *device.Helper) (int, error) { return k.Disown(ctx, pidsOf(stopped), others) })
		if err != nil || changed == 0 {
			return err
		}
		log.G(ctx).WithField("processes", changed).Debug("forked processes have given up device files")
	}
	return nil
}

// holds reports whether a process is one of those that stand still.
func (e *Engine) holds(pid int) bool {
	return slices.ContainsFunc(e.held, func(p cudaProcess) bool { return p.PID == pid })
}

// opening returns those of the processes that have opened or mapped device nodes of the driver.
func (e *Engine) opening(pids []int) (found []int, err error) {
	for _, pid := range pids {
		has, err := e.host().mapsOrOpened(pid, ofNodes)
		if ended(err) != nil {
			return nil, err
		}
		if has {
			found = append(found, pid)
		}
	}
	slices.Sort(found)
	return found, nil
}
