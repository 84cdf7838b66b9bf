package gpu

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Restore loads what a snapshot has of GPUs after CRIU has restored the processes.
type Restore struct {
	Container
	Record Record
	// Map says which devices shall take the places of which; others do in order.
	Map Map
	// Bring starts to bring what processes had handed over, the pieces of the record in its order, and waits for nothing. It may be nil where the record has no pieces.
	Bring func() (Source, error)
	// Kept borrows what was loaded for this snapshot before, the first that fits; nil: there is none. It may be nil itself.
	Kept func(fits func(Prewarmed) bool) (*PrewarmedLease, error)

	// Thaw lets the processes run, which stand frozen since CRIU has restored them: they must not run code of their programs before the driver has brought back what they had. nil: they run.
	Thaw func(ctx context.Context) error

	begun *task  // of looking what fits, whose error is what stands in the way; the fields below are there when it is over. nil: nothing was begun
	end   func() // breaks it off

	line   line
	places []device.Device // of the record's devices
	pairs  []device.DevicePair
	coming *importTask
}

// Begin starts all that need not wait for CRIU, and returns at once: it makes sure that this host can take what the snapshot holds, and
// begins to load what was handed over. [Restore.Fits] says what it came to. It ends with ctx, or by [Restore.Close].
func (r *Restore) Begin(ctx context.Context) error {
	if len(r.Record.Processes) == 0 {
		return nil
	}
	if len(r.Record.Pieces()) > 0 && r.Bring == nil {
		return failure.New(errdefs.ErrFailedPrecondition, "restore it with cryo restore", "the snapshot keeps memory of GPUs beside CRIU's images, and no process brings it")
	}
	ctx, r.end = context.WithCancel(ctx)
	r.begun = beside(func() error { return r.begin(ctx) })
	return nil
}

func (r *Restore) begin(ctx context.Context) error {
	if n := len(r.Record.Pieces()); n > 0 {
		go channel.Expect(n)
	}
	if kept := r.borrow(ctx); kept != nil {
		return r.check(ctx, kept.Info().Bytes())
	}
	return r.bring(ctx, func(ctx context.Context) error { return r.check(ctx, nil) })
}

// Fits waits until all of the snapshot's memory has its place on this host's GPUs, and gives the reason where it has none: a
// [MisfitError], or one of packages driver and keeper, or of the process that brings memory. It may be called again.
func (r *Restore) Fits() error {
	if r.begun == nil {
		return nil
	}
	<-r.begun.done
	return r.begun.err
}

// Loading returns a context that ends, with the reason, when what was handed over cannot be loaded: nothing else of the container needs to be waited for
// then. It is called when Fits has found nothing in the way.
func (r *Restore) Loading(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if c := r.coming; c != nil {
		go func() {
			select {
			case <-c.done:
				if c.err != nil {
					cancel(c.err)
				}
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}

// check starts a helper, and makes sure that this host can take what the snapshot holds, of which so many bytes are loaded already, by device.
func (r *Restore) check(ctx context.Context, loaded map[string]int64) error {
	facts, err := ask(ctx, &r.line, askTime, func(k *device.Helper) (device.Facts, error) { return k.Facts(ctx) })
	if err != nil {
		return err
	}
	return r.plan(facts, loaded)
}

// plan finds the devices that take the places of the record's, and returns a [*MisfitError] where they cannot.
func (r *Restore) plan(facts device.Facts, loaded map[string]int64) (err error) {
	if r.places, err = r.Record.places(r.visible(facts), r.Map); err != nil {
		return err
	}
	for i := range r.places {
		r.places[i].Free += loaded[r.places[i].UUID]
	}
	r.pairs = r.Record.pairs(r.places)
	return r.Record.fits(facts, r.places)
}

// Load is called when CRIU has restored the processes and their device nodes are those of this host. It lets them go on,
// or returns an error: what the driver has not restored then is of no use, and the container is to be ended.
func (r *Restore) Load(ctx context.Context) (time.Duration, error) {
	if len(r.Record.Processes) == 0 {
		return 0, nil
	}
	start := time.Now()
	if err := r.Fits(); err != nil {
		return 0, err
	}
	saved, err := r.find(ctx)
	if err != nil {
		return 0, err
	}
	if r.Thaw != nil {
		for died := 1; ; died++ { // the helper may die, and another does it
			err := stop(ctx, &r.line, saved)
			if err == nil {
				break
			}
			if died == helpers || ctx.Err() != nil {
				return 0, err
			}
			r.line.drop()
		}
		if err := r.Thaw(ctx); err != nil {
			return 0, err
		}
	}
	if err := bringBack(ctx, &r.line, r.host(), saved, r.pairs, func() { r.makeRoom(ctx) }); err != nil {
		return 0, err
	}
	if err := allRun(r.host(), saved); err != nil {
		return 0, err
	}
	if err := r.attach(ctx, saved); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}

// Loaded returns how the GPUs were loaded, when [Restore.Load] has taken so long.
func (r *Restore) Loaded(took time.Duration) Loaded {
	l := Loaded{Seconds: took.Seconds(), Prewarmed: r.coming != nil && r.coming.kept != nil}
	for i, d := range r.places {
		l.GPUs = append(l.GPUs, device.DevicePair{Old: r.Record.Devices[i].UUID, New: d.UUID})
	}
	return l
}

// find returns the processes of the record. Those that have ended since CRIU let them run are passed over.
func (r *Restore) find(ctx context.Context) (found []cudaProcess, err error) {
	pids, err := r.PIDs(ctx)
	if err != nil {
		return nil, err
	}
	missing := slices.Clone(r.Record.Processes)
	for _, pid := range pids {
		p, err := r.host().process(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(missing, func(s record.GPUProcess) bool { return s.PID == p.Inner })
		if i < 0 {
			continue
		}
		found = append(found, cudaProcess{Process: p, uses: []device.DeviceUse{{PID: pid, Memory: missing[i].Memory}}, pieces: missing[i].Pieces})
		missing = slices.Delete(missing, i, i+1)
	}
	if len(found) == 0 {
		return nil, noProcessError(missing)
	}
	return found, nil
}

// Close ends the helper, which undoes nothing, and the processes that hold and bring memory. What was borrowed and not used goes back.
func (r *Restore) Close() {
	if r.begun != nil {
		r.end()
		<-r.begun.done
	}
	r.line.end()
	r.coming.end()
}
