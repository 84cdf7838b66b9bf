package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// Helper is a helper that runs. Its methods may be called from several goroutines; requests are answered one after the
// other. They give [DiedError] once the helper is gone. A call of the driver is never abandoned: a context that ends makes a method
// return the context's error, but after the driver has answered, and with the outcomes where there are any. A
// driver that does not answer at all is ended by [Program.Kill]: what the helper has done stays done, and a call in progress goes on or not, as the driver likes.
type Helper struct {
	*Program
	mu sync.Mutex // one request at a time
}

// StartHelper starts the helper at path, or, where path is "", the one beside the own executable, else that of PATH. It returns
// when the driver is initialised, with [ErrNoHelper] or [UnusableError] where that cannot be. The helper leaves the session
// of its parent, and ends with it.
func StartHelper(ctx context.Context, path string) (*Helper, error) {
	p, err := RunProgram(path, "driver")
	if err != nil {
		return nil, err
	}
	c := &Helper{Program: p}
	stop := context.AfterFunc(ctx, func() { _ = c.Kill() }) // nothing is held yet
	a, err := c.receive()
	stop()
	if err == nil && a.Driver != nil {
		err = a.Driver
	}
	if err == nil && a.Hello != HelperVersion {
		err = failure.New(errdefs.ErrFailedPrecondition,
			"the container's shim is of another release than the installed cryo-gpu-keeper: install that release until the container has ended, or end the container and start it anew",
			"start cryo-gpu-keeper: it speaks version %d, not %d", a.Hello, HelperVersion)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("start cryo-gpu-keeper: %w", context.Cause(ctx))
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// ReadFacts starts a helper as [StartHelper] does, asks it for facts and ends it.
func ReadFacts(ctx context.Context, path string) (Facts, error) {
	c, err := StartHelper(ctx, path)
	if err != nil {
		return Facts{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Kill() }) // it holds nothing
	f, err := c.Facts(ctx)
	stop()
	_ = c.Close()
	return f, err
}

// Facts asks for devices, what processes hold on them, and versions.
func (c *Helper) Facts(ctx context.Context) (Facts, error) {
	a, err := c.ask(ctx, request{Do: verbFacts})
	if err != nil {
		return Facts{}, err
	}
	if a.Facts == nil {
		return Facts{}, fmt.Errorf("facts: unexpected message from the helper: no facts: %w", errdefs.ErrInternal)
	}
	return *a.Facts, nil
}

// States asks where each process stands. Those without CUDA, and those that are gone, are in state [StateNone].
func (c *Helper) States(ctx context.Context, pids []int) (map[int]ProcessState, error) {
	if len(pids) == 0 {
		return nil, ctx.Err()
	}
	a, err := c.ask(ctx, request{Do: verbStates, PIDs: pids})
	return a.States, err
}

// Lock locks the processes side by side, all by one deadline. An outcome of [NotReady] is a process that had not finished its
// work by then; the others may be locked and are to be unlocked if not all are.
func (c *Helper) Lock(ctx context.Context, pids []int, timeout time.Duration) ([]Outcome, error) {
	ms := min(max(timeout, time.Millisecond), maxTimeout).Milliseconds()
	return c.each(ctx, request{Do: verbLock, PIDs: pids, Timeout: ms})
}

// Checkpoint takes what locked processes have on devices into their host memory.
func (c *Helper) Checkpoint(ctx context.Context, pids []int) ([]Outcome, error) {
	return c.each(ctx, request{Do: verbCheckpoint, PIDs: pids})
}

// Restore is Checkpoint undone. No pairs: onto the same devices. Otherwise the pairs name each device of each process
// exactly once, also those that stay the same. The processes are locked then.
func (c *Helper) Restore(ctx context.Context, pids []int, pairs []DevicePair) ([]Outcome, error) {
	return c.each(ctx, request{Do: verbRestore, PIDs: pids, Pairs: pairs})
}

// Unlock lets locked processes go on.
func (c *Helper) Unlock(ctx context.Context, pids []int) ([]Outcome, error) {
	return c.each(ctx, request{Do: verbUnlock, PIDs: pids})
}

// Stop has the threads of locked processes stand still, but for the one by which the driver works in each: nothing else may run in a process whose device memory is not where it was.
// A cgroup that is frozen may be thawed afterwards. A process goes on when it is unlocked, and all do by [Helper.Yield] or when the helper ends.
func (c *Helper) Stop(ctx context.Context, pids []int) error {
	if len(pids) == 0 {
		return ctx.Err()
	}
	_, err := c.ask(ctx, request{Do: verbStop, PIDs: pids})
	return err
}

// Yield lets the threads of all processes go that [Helper.Stop] has stopped. Processes that must run nothing are frozen by then. CRIU cannot dump what another traces.
func (c *Helper) Yield(ctx context.Context) error {
	_, err := c.ask(ctx, request{Do: verbYield})
	return err
}

// Disown has other processes give up the device files that they have inherited from stopped ones, and returns how many did: see [Helper.Stop]. A process that has a context of its own is not to be among
// them. They run on, with memory and descriptors in their place that do nothing.
func (c *Helper) Disown(ctx context.Context, stopped, others []int) (changed int, err error) {
	a, err := c.ask(ctx, request{Do: verbDisown, PIDs: stopped, Others: others})
	return a.Changed, err
}

// each asks for a call of the driver for each process. The outcomes are in the order of pids.
func (c *Helper) each(ctx context.Context, r request) ([]Outcome, error) {
	if len(r.PIDs) == 0 {
		return nil, ctx.Err()
	}
	a, err := c.ask(ctx, r)
	if err == nil && len(a.Outcomes) != len(r.PIDs) {
		err = fmt.Errorf("%s: %d outcomes for %d processes: %w", r.Do, len(a.Outcomes), len(r.PIDs), errdefs.ErrInternal)
	}
	return a.Outcomes, err
}

func (c *Helper) ask(ctx context.Context, r request) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, fmt.Errorf("%s: %w", r.Do, context.Cause(ctx))
	}
	if err := r.check(); err != nil {
		return answer{}, fmt.Errorf("%s: %w: %w", r.Do, err, errdefs.ErrInvalidArgument)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var a answer
	err := c.Channel.Send(r)
	if err == nil {
		a, err = c.receive()
	} else {
		err = c.Died()
	}
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("%s: %w", r.Do, err)
	case a.Driver != nil:
		return answer{}, fmt.Errorf("%s: %w", r.Do, a.Driver)
	case a.Error != "":
		return answer{}, fmt.Errorf("%s: %s: %w", r.Do, a.Error, errdefs.ErrInternal)
	case ctx.Err() != nil:
		return a, fmt.Errorf("%s: %w", r.Do, context.Cause(ctx))
	}
	return a, nil
}

// receive reads the next answer.
func (c *Helper) receive() (answer, error) {
	var data json.RawMessage
	fds, err := c.Channel.Receive(&data)
	channel.Close(fds) // it sends none
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
		return answer{}, c.Died()
	}
	if err != nil {
		return answer{}, err
	}
	return decodeHelperAnswer(data)
}
