package gpu

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
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
		with, without, err := e.withNVML(others)
		if err != nil {
			return err
		}
		changed, err := e.disownFrom(ctx, stopped, without)
		if err != nil {
			return err
		}
		more, err := e.disownFrom(ctx, slices.DeleteFunc(slices.Clone(stopped), cudaProcess.idle), with)
		if changed += more; err != nil || changed == 0 {
			return err
		}
		log.G(ctx).WithField("processes", changed).Debug("forked processes have given up device files")
	}
	return nil
}

// disownFrom has those of the processes give up device files that were forked from the holders.
func (e *Engine) disownFrom(ctx context.Context, holders []cudaProcess, pids []int) (changed int, err error) {
	if len(holders) == 0 || len(pids) == 0 {
		return 0, nil
	}
	return ask(ctx, &e.line, askTime, func(k *device.Helper) (int, error) { return k.Disown(ctx, pidsOf(holders), pids) })
}

// withNVML returns which of the processes have loaded NVML, and which have not. Who only watches GPUs by NVML is stopped, too, and children of it may initialise NVML again, by device files that they have inherited.
func (e *Engine) withNVML(pids []int) (with, without []int, err error) {
	for _, pid := range pids {
		has, err := e.host().maps(pid, func(path string) bool { return strings.Contains(path, "/libnvidia-ml.so") })
		switch {
		case ended(err) != nil:
			return nil, nil, err
		case has:
			with = append(with, pid)
		default:
			without = append(without, pid)
		}
	}
	return with, without, nil
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

// closed refuses processes that have opened device nodes of the driver still, when all that uses CUDA has been saved: CRIU cannot dump them.
func (e *Engine) closed() error {
	pids, err := e.opening(criu.ProcessTree(e.First))
	if err != nil {
		return err
	}
	var names []string
	for _, pid := range pids {
		if p, err := e.host().process(pid); err == nil {
			names = append(names, p.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return failure.New(errdefs.ErrFailedPrecondition,
		"the driver saves NVML where libcuda.so.1 is in the container (NVIDIA_DRIVER_CAPABILITIES with compute): not in forked children of a process that has it open, and no event sets, as nvidia-smi -l has one; "+
			"end these, or have them call nvmlEventSetFree and nvmlShutdown; end programs that use a GPU for graphics",
		"save its GPUs: device files of the driver are open that the driver does not save, in %s (gpu-open)", list(names)).By("gpu-open")
}
