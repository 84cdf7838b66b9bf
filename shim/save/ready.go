package save

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/shim/worker"
)

// readyTick is how long is between two looks whether a program is ready.
const readyTick = 100 * time.Millisecond

// awaitReady waits until the program has said that its snapshot may be taken, if that is wanted. The container runs meanwhile, and nothing is held.
func (t *taking) awaitReady(ctx context.Context, sub *candidate) error {
	if t.ReadyTimeout == 0 {
		return nil
	}
	var spec specs.Spec
	if err := json.Unmarshal(sub.config.Spec, &spec); err != nil {
		return fmt.Errorf("read the runtime specification of %s: %w", t.Container, err)
	}
	control, err := worker.ControlOf(&spec)
	if err != nil {
		return err
	}
	if control == nil {
		return failure.New(errdefs.ErrFailedPrecondition, "start it with the variable "+worker.ControlVariable+" in its environment (shim/CONTRACT.md), or leave out --when-ready",
			"checkpoint %s: its environment names no control directory, where its program could say that it is ready", t.Container)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, t.ReadyTimeout, failure.New(context.DeadlineExceeded, "see what the program waits for, or raise --ready-timeout",
		"checkpoint %s: its program has not made the file %s/%s within %s", t.Container, control.Dir, control.Ready, t.ReadyTimeout))
	defer cancel()
	tick := time.NewTicker(readyTick)
	defer tick.Stop()
	for waits := false; ; {
		ready, err := control.IsReady(sub.process.pid)
		if sub.process.gone() {
			return checkpoint.NotRunning(t.Container, "stopped")
		}
		if err != nil {
			return failure.New(errdefs.ErrFailedPrecondition, "have the variable "+control.Variable+" name a directory of the container", "checkpoint %s: see whether its program is ready: %v", t.Container, err)
		}
		if ready {
			log.G(ctx).Debug("the program is ready")
			return nil
		}
		if !waits {
			waits = true
			t.Say("waiting until %s is ready, by the file %s/%s", t.Container, control.Dir, control.Ready)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
