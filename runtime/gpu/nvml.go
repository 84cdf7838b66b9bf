package gpu

import (
	"context"
	"fmt"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// openRule is looked at when all that uses CUDA has been saved.
var openRule = Rule{"gpu-open", "NVML fails in processes that have it open without CUDA until they initialise it again, and programs that use a GPU for graphics fail", opening}

// opening returns the processes that have the driver's device files open and do not open them again by themselves.
func opening(s examination) (found []Finding, err error) {
	if len(s.opening) == 0 {
		return nil, nil
	}
	return []Finding{{
		Problem: fmt.Sprintf("%s have opened device files of the driver beside CUDA, which cannot be saved", list(s.opening)),
		Hint: "if it is NVML (nvidia-smi, pynvml, a launcher), create the container with the annotation " + EngineAnnotation + ": keeper, whose library initialises NVML again, " +
			"or end what uses it, or have it call nvmlShutdown; end programs that use a GPU for graphics",
	}}, nil
}

// closeNVML has all processes that CRIU is to dump give up the driver's device files, when all that uses CUDA has been saved: NVML has some in processes without CUDA. They stand still from then on, and it
// reports whether there are any. It refuses processes that would not open them again.
func (e *Engine) closeNVML(ctx context.Context) (still bool, err error) {
	for round := 0; ; round++ {
		pids, err := e.opening(criu.ProcessTree(e.First))
		if err != nil || len(pids) == 0 {
			return still, err
		}
		if round == rounds {
			return still, restlessError(e.describe(pids))
		}
		if err := e.mayClose(ctx, pids); err != nil {
			return still, err
		}
		changed, err := ask(ctx, &e.line, askTime, func(k *device.Helper) (int, error) { return k.GiveUp(ctx, pids) })
		if err != nil {
			return still, err
		}
		still = true
		log.G(ctx).WithField("processes", changed).Debug("processes have given up device files of NVML")
	}
}

// describe names processes for people.
func (e *Engine) describe(pids []int) (names []string) {
	for _, pid := range pids {
		if p, err := e.host().process(pid); err == nil { // else it has ended
			names = append(names, p.String())
		}
	}
	return names
}

// mayClose refuses processes that would not open the driver's device files again.
func (e *Engine) mayClose(ctx context.Context, pids []int) error {
	var others []int
	for _, pid := range pids {
		renews, err := device.RenewsNVML(pid)
		if err != nil {
			return err
		}
		if !renews {
			others = append(others, pid)
		}
	}
	findings, forced, err := preflight(examination{opening: e.describe(others)}, []Rule{openRule}, e.Force)
	if err != nil {
		return err
	}
	if len(findings) > 0 {
		return refusedToSave(findings)
	}
	e.record.force(forced)
	for _, rule := range forced {
		log.G(ctx).WithField("rule", rule).Warn("take device files from processes that do not open them again")
	}
	return nil
}
