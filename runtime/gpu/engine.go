package gpu

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// Annotations of a container that choose for its checkpoints.
const (
	TimeoutAnnotation = "cryo.gpu/timeout" // of the lock: "10s"
	ForceAnnotation   = "cryo.gpu/force"   // rules to override, separated by commas, or all
)

// Container says of which container the GPUs are.
type Container struct {
	// PIDs lists its processes, by their ids in this process's pid namespace, which must be the first one.
	PIDs func(ctx context.Context) ([]int, error)
	// Start starts a keeper; [StartKeeper] is the one to use.
	Start func(ctx context.Context) (Keeper, error)
	// Minors are the numbers N of its device nodes /dev/nvidiaN, in the order in which they are recorded. None: it can see
	// all devices.
	Minors []int
	// Root is where /proc and /sys are; empty: /
	Root string
}

func (c Container) host() proc {
	if c.Root == "" {
		return proc{"/"}
	}
	return proc{c.Root}
}

// visible are the devices the container can see, in order.
func (c Container) visible(facts keeper.Facts) (devices []keeper.Device) {
	if len(c.Minors) == 0 {
		devices = slices.Clone(facts.Devices)
		slices.SortFunc(devices, func(a, b keeper.Device) int { return a.Minor - b.Minor })
		return devices
	}
	for _, minor := range c.Minors {
		if i := slices.IndexFunc(facts.Devices, func(d keeper.Device) bool { return d.Minor == minor }); i >= 0 {
			devices = append(devices, facts.Devices[i])
		}
	}
	return devices
}

// Engine saves and loads the GPUs of one container for one checkpoint.
type Engine struct {
	Container
	Timeout    time.Duration // for all processes to finish their work on GPUs
	Force      []string      // rules to override
	Interrupts Interrupts
	// CDI, Edits and Nodes are recorded.
	CDI   []string
	Edits *cdi.Edits
	Nodes []Node

	line   line
	held   []cudaProcess // all that were asked to stand still and may do so
	record Record
}

var _ checkpoint.Devices = (*Engine)(nil)

// rounds is how often processes are looked for that were started meanwhile.
const rounds = 4

// Save implements [checkpoint.Devices]. Errors are those of this package and of package keeper, [fs.ErrNotExist] and the
// like of /proc, and the context's.
func (e *Engine) Save(ctx context.Context) (checkpoint.Saved, error) {
	e.line.start = e.Start
	saved, err := e.save(ctx)
	if err == nil {
		return saved, nil
	}
	e.line.lost(err)
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
	e.record = Record{Engine: engine, Driver: e.host().driver(), Devices: []Device{}, Processes: []Saved{}, CDI: e.CDI, Edits: e.Edits, Nodes: e.Nodes}
	for round := 0; ; round++ {
		fresh, err := e.discover(ctx)
		if err != nil || len(fresh) == 0 {
			return s, err
		}
		if round == rounds {
			return s, &RestlessError{Processes: subject{processes: fresh}.names()}
		}
		if fresh, err = e.examine(ctx, fresh); err != nil {
			return s, err
		}
		start := time.Now()
		if s.Since.IsZero() {
			s.Since = start
		}
		if fresh, err = e.lock(ctx, fresh); err != nil {
			return s, err
		}
		locked := time.Now()
		if err := e.checkpoint(ctx, fresh); err != nil {
			return s, err
		}
		s.Lock += locked.Sub(start)
		s.Save += time.Since(locked)
		e.record.add(fresh)
		e.record.Seconds = Seconds{Lock: s.Lock.Seconds(), Checkpoint: s.Save.Seconds()}
	}
}

// discover gives the container's processes that have something on GPUs and are not held yet. The driver is asked only of
// those that may have.
func (e *Engine) discover(ctx context.Context) ([]cudaProcess, error) {
	pids, err := e.PIDs(ctx)
	if err != nil {
		return nil, err
	}
	var candidates []int
	for _, pid := range pids {
		if slices.ContainsFunc(e.held, func(p cudaProcess) bool { return p.PID == pid }) {
			continue
		}
		touches, err := e.host().touches(pid)
		if ended(err) != nil {
			return nil, err
		}
		if touches {
			candidates = append(candidates, pid)
		}
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	slices.Sort(candidates)
	k, err := e.line.keeper(ctx)
	if err != nil {
		return nil, err
	}
	states, err := within(k, askTime, func() (map[int]keeper.State, error) { return k.States(ctx, candidates) })
	if err != nil {
		return nil, err
	}
	var found []cudaProcess
	for _, pid := range candidates {
		if states[pid] == keeper.None || states[pid] == "" {
			continue
		}
		p, err := e.host().process(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if states[pid] != keeper.Running {
			return nil, &StateError{Process: p, State: states[pid]}
		}
		found = append(found, cudaProcess{Process: p})
	}
	return found, nil
}

// examine makes sure that nothing stands in the way, and gives the processes with what they hold on devices.
func (e *Engine) examine(ctx context.Context, fresh []cudaProcess) ([]cudaProcess, error) {
	k, err := e.line.keeper(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := within(k, askTime, func() (keeper.Facts, error) { return k.Facts(ctx) })
	if err != nil {
		return nil, err
	}
	for i, p := range fresh {
		for _, u := range facts.Uses {
			if u.PID == p.PID {
				fresh[i].uses = append(fresh[i].uses, u)
			}
		}
	}
	s := subject{facts: facts, devices: e.visible(facts), processes: slices.Concat(e.held, fresh), host: e.host()}
	findings, forced, err := preflight(s, e.Force)
	if err != nil {
		return nil, err
	}
	if len(findings) > 0 {
		return nil, &RefusedError{Findings: findings}
	}
	if len(forced) > 0 {
		log.G(ctx).WithField("rules", forced).Warn("save GPUs although it was refused")
	}
	e.record.describe(facts, s, forced)
	return fresh, nil
}

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

// Record implements [checkpoint.Devices].
func (e *Engine) Record(dir string) error { return e.record.WriteFile(dir) }

// Load implements [checkpoint.Devices]. It may be called long after Save, and again after an error that is no loss.
func (e *Engine) Load(ctx context.Context) error {
	e.line.start = e.Start
	if err := e.back(ctx); err != nil {
		e.Release()
		return err
	}
	e.held = nil
	e.Release()
	return nil
}

// Release implements [checkpoint.Devices].
func (e *Engine) Release() { e.line.hangUp(context.Background()) }

// back lets all that are held go on with what they had.
func (e *Engine) back(ctx context.Context) error {
	return bringBack(ctx, &e.line, e.host(), e.held, nil)
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

// driver is the version of NVIDIA's kernel module; empty where it is not loaded.
func (p proc) driver() string {
	version, err := os.ReadFile(filepath.Join(p.root, "sys/module/nvidia/version"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(version))
}
