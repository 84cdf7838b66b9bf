package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Annotations of a container that choose for its checkpoints.
const (
	TimeoutAnnotation = "io.cryo.gpu.timeout" // of the lock: "10s"
	ForceAnnotation   = "io.cryo.gpu.force"   // rules to override, separated by commas, or all
)

// Engine saves and loads the GPUs of one container for one checkpoint.
type Engine struct {
	Container
	// First is the container's first process: CRIU dumps it and its descendants, and nothing else that runs in the container.
	First   int
	Timeout time.Duration // for all processes to finish their work on GPUs
	Force   []string      // rules to override
	// Raise has kernels of a process return early, for no longer than a lease, and Lower lets them run again: see package gpu. Both give how many flags of the
	// process they have set. nil: kernels are waited for.
	Raise func(pid int, lease time.Duration) (int, error)
	Lower func(pid int) (int, error)
	// CDI, Edits and Nodes are recorded.
	CDI   []string
	Edits *CDIEdits
	Nodes []record.GPUNode
	// Peer returns a connection, on which package device speaks, to the process that takes device memory. It is called when the record lies beside the images.
	// nil: nothing is handed over, and all memory goes by the driver.
	Peer func() (*os.File, error)
	// Precopy returns a connection as Peer does, for what is copied while the processes run, which the argument describes. It may be called before Peer, once. nil, or a nil file: nothing is.
	Precopy func(*record.GPU) (*os.File, error)
	// Library, unless nil, is what the container was given to hand memory over, whether that is done or not. It is recorded.
	Library *record.GPULibrary
	// KeeperOnly makes it an error where a process cannot hand its memory over, before anything is done to it.
	RequireKeeper bool
	// GoesOn tells that the container is to run on after the checkpoint: what of its memory is copied need not come before.
	GoesOn bool
	// Fallback says why a container that asks for the engine keeper goes by the driver this time. It is recorded.
	Fallback string

	line   line
	held   []cudaProcess // all that were asked to stand still and may do so
	ended  error         // of processes that had ended when all were brought back
	last   examination   // that was examined
	record Record

	keeper   *device.Keeper // nil: none
	given    []*given       // the processes that may have handed memory over
	pieces   int            // that they have handed over
	outgoing *outgoing
	planned  map[planned]int // which pieces were copied while their processes ran, from 1; nil: it was not tried
	holding  *task           // of the keeper, which takes what was given; nil: that was waited for
}

var _ checkpoint.Devices = (*Engine)(nil)

// rounds is how often processes are looked for that were started meanwhile.
const rounds = 4

// Save implements [checkpoint.Devices]. Errors are those of this package and of package device, those of
// /proc, and the context's.
func (e *Engine) Save(ctx context.Context) (checkpoint.Saved, error) {
	saved, err := e.save(ctx)
	if err == nil {
		e.held = slices.DeleteFunc(e.held, func(p cudaProcess) bool { return !e.host().alive(p.PID) }) // they have ended before
		return saved, nil
	}
	e.line.lost(err)
	e.stop()
	if back := e.back(ctx); back != nil {
		err = errors.Join(err, &checkpoint.LossError{Err: back})
	}
	e.held = nil
	e.Release()
	return checkpoint.Saved{}, err
}

func (e *Engine) save(ctx context.Context) (s checkpoint.Saved, err error) {
	if err := CheckForce(e.Force); err != nil {
		return s, err
	}
	e.record = Record{GPU: record.GPU{Engine: record.DriverEngine, Driver: e.host().driverFile(), Devices: []record.GPUDevice{}, Processes: []record.GPUProcess{}, CDI: e.CDI, Nodes: e.Nodes}, Edits: e.Edits}
	if e.Library != nil {
		l := *e.Library
		e.record.Library = &l
	}
	if e.Library != nil || e.Fallback != "" {
		e.record.Engine = record.KeeperEngine
	}
	for round := 0; ; round++ {
		fresh, silent, err := e.discover(ctx)
		if err != nil {
			return s, err
		}
		if len(fresh)+len(silent) == 0 {
			return s, e.closed()
		}
		facts, err := e.facts(ctx, silent)
		var quiet *SilentError
		if errors.As(err, &quiet) && round < rounds {
			if err := wait(ctx, moment); err != nil { // it may be starting
				return s, err
			}
			continue
		}
		if err != nil {
			return s, err
		}
		if len(fresh) == 0 {
			return s, e.closed()
		}
		if round == rounds {
			return s, restlessError(names(fresh))
		}
		weigh(facts, fresh)
		if fresh, err = e.introduce(ctx, fresh); err != nil {
			return s, err
		}
		if len(fresh) == 0 { // all have ended
			continue
		}
		if err := e.examine(ctx, facts, fresh); err != nil {
			return s, err
		}
		if fresh, err = e.awaitKeeper(ctx, fresh); err != nil {
			return s, err
		}
		if fresh, err = e.precopy(ctx, fresh); err != nil {
			return s, err
		}
		start := time.Now()
		asked := e.interrupt(ctx, fresh)
		if len(asked) == 0 { // all run on as before
			start = time.Now()
		}
		if s.Since.IsZero() {
			s.Since = start
		}
		if fresh, err = e.halt(ctx, fresh, asked); err != nil {
			return s, err
		}
		if len(fresh) == 0 {
			continue
		}
		locked := time.Now()
		if err := e.sharing(ctx, fresh); err != nil {
			return s, err
		}
		if err := e.checkpoint(ctx, fresh); err != nil {
			return s, err
		}
		if err := e.endHold(); err != nil {
			return s, err
		}
		s.Lock += locked.Sub(start)
		s.Save += time.Since(locked)
		e.record.add(fresh)
		e.record.Seconds = record.GPUSeconds{Lock: s.Lock.Seconds(), Checkpoint: s.Save.Seconds()}
	}
}

// halt has processes, of which some were asked to interrupt their kernels, hand over what they can, and then wait at the driver's lock. It gives those
// that have not ended meanwhile.
func (e *Engine) halt(ctx context.Context, fresh, asked []cudaProcess) (held []cudaProcess, err error) {
	// Those that wait at a gate launch nothing, and those that were late shall go on.
	defer e.uninterrupt(ctx, asked)
	if fresh, err = e.handOver(ctx, fresh); err != nil || len(fresh) == 0 {
		return nil, err
	}
	if held, err = e.lock(ctx, fresh); err != nil {
		return nil, err
	}
	return held, e.gaveAndEnded(held)
}

// sharing asks once more whether processes may share memory, where one of those that are locked now had no context when it was asked: it may have made one, and imported memory, meanwhile.
func (e *Engine) sharing(ctx context.Context, locked []cudaProcess) error {
	if len(e.held) < 2 || !slices.ContainsFunc(locked, cudaProcess.idle) {
		return nil
	}
	facts, err := e.facts(ctx, nil)
	if err != nil {
		return err
	}
	now := slices.Clone(e.held)
	for i := range now {
		now[i].uses = nil
	}
	weigh(facts, now)
	findings, _, err := preflight(examination{facts: facts, devices: e.visible(facts), processes: now, host: e.host()}, []Rule{severalRule}, e.Force)
	if err == nil && len(findings) > 0 {
		err = refusedToSave(findings)
	}
	return err
}

// weigh notes what processes hold on devices.
func weigh(facts device.Facts, fresh []cudaProcess) {
	for i, p := range fresh {
		for _, u := range facts.Uses {
			if u.PID == p.PID {
				fresh[i].uses = append(fresh[i].uses, u)
			}
		}
	}
}

// examine makes sure that nothing stands in the way.
func (e *Engine) examine(ctx context.Context, facts device.Facts, fresh []cudaProcess) error {
	s := examination{facts: facts, devices: e.visible(facts), processes: slices.Concat(e.held, fresh), host: e.host()}
	findings, forced, err := preflight(s, Rules(), e.Force)
	if err != nil {
		return err
	}
	if len(findings) > 0 {
		return refusedToSave(findings)
	}
	if len(forced) > 0 {
		log.G(ctx).WithField("rules", forced).Warn("save GPUs although it was refused")
	}
	e.record.describe(facts, s, forced)
	e.last = s
	return nil
}

// Record implements [checkpoint.Devices].
func (e *Engine) Record(dir string) error {
	// What processes say of their memory goes into it, and its reader believes no more than this.
	if err := e.record.check(); err != nil {
		return fmt.Errorf("record GPUs: %w", err)
	}
	if err := e.record.WriteFile(dir); err != nil || e.pieces == 0 {
		return err
	}
	return e.send()
}

// Load implements [checkpoint.Devices]. It may be called long after Save, and again after an error that is no loss.
func (e *Engine) Load(ctx context.Context) error {
	e.keep()
	if err := e.back(ctx); err != nil {
		e.Release()
		return err
	}
	e.held = nil
	e.line.end()
	return e.ended
}

// Yield implements [checkpoint.Devices].
func (e *Engine) Yield(ctx context.Context) error {
	if e.line.open == nil {
		return nil
	}
	return yield(ctx, &e.line)
}

// Stop implements [checkpoint.Devices].
func (e *Engine) Stop(ctx context.Context) error {
	return stop(ctx, &e.line, e.held)
}

// Release implements [checkpoint.Devices].
func (e *Engine) Release() {
	e.line.end()
	e.stop()
	e.forget()
}

// forget gives up the memory of those that have handed it over, unless another process has it.
func (e *Engine) forget() {
	for _, g := range e.given {
		g.hangUp()
		g.closeFiles()
	}
	e.given, e.pieces = nil, 0
}

// back lets all that are held go on with what they had.
func (e *Engine) back(ctx context.Context) error {
	if err := bringBack(ctx, &e.line, e.host(), e.held, nil, e.breakOff); err != nil {
		return err
	}
	e.ended = allRun(e.host(), e.held)
	if len(e.given) == 0 {
		return nil
	}
	f := &filler{keeper: e.keeper}
	defer f.end()
	if err := giveBack(ctx, e.Container, e.given, f, e.breakOff); err != nil {
		return err
	}
	e.forget()
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
