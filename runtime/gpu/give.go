package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// introduce wakes the libraries of processes and tells which of these can hand their memory over. The others go by the driver, and why
// is recorded. Where nothing is to be handed over, it makes sure that no process has memory of another process still. It gives those that have not ended meanwhile.
func (e *Engine) introduce(ctx context.Context, fresh []cudaProcess) ([]cudaProcess, error) {
	if e.Peer == nil && e.RequireKeeper {
		return nil, fallbackError(fresh[0].Process, cmp.Or(e.Fallback, "the container was not made for the engine keeper"))
	}
	for i, p := range fresh {
		fresh[i].fallback = e.Fallback
		if e.Library == nil {
			continue
		}
		g := &given{cudaProcess: p}
		why, err := e.wake(ctx, g)
		switch {
		case err != nil && e.hasEnded(ctx, g):
			g.hangUp()
			continue
		case err == nil && why != "" && e.Peer != nil:
			err = e.leave(ctx, &fresh[i], why)
		case err == nil && why == "" && e.Peer == nil:
			if err = g.importsNothing(); err == nil {
				err = e.giveUp(ctx, g)
			}
			g.hangUp()
		}
		if err == nil && why == "" && e.Peer != nil {
			fresh[i].shared, err = g.books()
		}
		if err != nil {
			g.hangUp()
			return nil, err
		}
		if why != "" || e.Peer == nil {
			continue
		}
		fresh[i].able = true
		e.given = append(e.given, g)
	}
	var err error
	if !slices.ContainsFunc(e.given, func(g *given) bool { return g.stood }) {
		err = e.startKeeper(ctx, fresh)
	}
	return e.present(fresh), err
}

// startKeeper starts the process that is to take the memory of those that can hand theirs over, unless there are none or it has been started. Where it does not start they go by the
// driver. Contexts are made on the devices then, for which kernels of processes that run must give way: see [given.stood].
func (e *Engine) startKeeper(ctx context.Context, fresh []cudaProcess) error {
	var devices []string
	for _, p := range fresh {
		for _, uuid := range p.uuids() {
			if p.able && !slices.Contains(devices, uuid) {
				devices = append(devices, uuid)
			}
		}
	}
	if e.keeper != nil || len(talking(e.given)) == 0 {
		return nil
	}
	h, err := openKeeper(ctx, devices)
	if err != nil {
		return e.leaveAll(ctx, fresh, err)
	}
	e.keeper = h
	return nil
}

// wake returns the reason why a process cannot hand its memory over, if there is one.
func (e *Engine) wake(ctx context.Context, g *given) (why string, err error) {
	hello, err := g.dial(ctx)
	switch {
	case err == nil && hello.State == library.Given:
		err = givenError(g.Process)
	case err == nil && hello.Unable == "":
		e.record.Library.Version, g.expected, g.mistaken, g.stood = hello.Version, hello.Pieces, hello.Mistaken, hello.Stood
		return "", nil
	case err == nil:
		if _, err = g.books(); err == nil {
			err = g.drivable()
		}
		if err == nil {
			err = g.own(ctx, hello, e.Timeout)
		}
		g.hangUp()
		return hello.Unable, err
	}
	g.hangUp()
	var gone *library.GoneError
	if errors.As(err, &gone) && !gone.Silent && context.Cause(ctx) == nil && e.host().alive(g.PID) {
		return gone.Err.Error(), nil
	}
	return "", err
}

// books returns what the library knows of memory that the process shares. It refuses multicast objects that the library cannot take away and bring back: the driver's checkpoint never ends with one.
func (g *given) books() (*library.Books, error) {
	b, err := g.library.Books()
	if err == nil && b.Wild {
		err = failure.New(errdefs.ErrFailedPrecondition, withoutMulticast, "save its GPUs: %s: %s", g.Process, b.Unknown)
	}
	g.casts, g.hosts = b.Multicasts > 0, b.Hosts > 0
	g.shares = g.casts || g.hosts || b.Exports+b.Imports+b.Peers > 0
	return &b, err
}

// own makes attached memory the process's own where there was no room for that before. What stays another's would be lost with the
// driver: it saves it, and does not restore it.
func (g *given) own(ctx context.Context, hello library.Hello, timeout time.Duration) error {
	if hello.Foreign == 0 {
		return nil
	}
	err := g.library.Close(ctx, timeout)
	var unable *library.UnableError
	if errors.As(err, &unable) { // its gate may not be tight, and memory must not change while it is copied
		return foreignError(g.Process, hello.Foreign)
	}
	if err != nil {
		return err
	}
	left, err := g.library.Own(ctx)
	if err = errors.Join(err, g.library.Open()); err == nil && left > 0 {
		err = foreignError(g.Process, left)
	}
	return err
}

// dial wakes a process's library.
func (g *given) dial(ctx context.Context) (library.Hello, error) {
	var err error
	if g.library, err = library.Dial(ctx, g.PID); err != nil {
		g.library = nil
		return library.Hello{}, err
	}
	return g.library.Hello()
}

// awaitKeeper waits until the keeper can take memory, if a keeper has been started. If the keeper fails, the driver saves the processes. awaitKeeper returns the processes
// that have not ended meanwhile.
func (e *Engine) awaitKeeper(ctx context.Context, fresh []cudaProcess) ([]cudaProcess, error) {
	ready := talking(e.given)
	if len(ready) == 0 || e.keeper == nil {
		return fresh, nil
	}
	err := e.keeper.Ready(ctx)
	if err == nil {
		expected := 0
		for _, g := range ready {
			expected += min(g.expected, record.MaxPieces)
		}
		channel.Expect(expected)
		return fresh, nil
	}
	if err := e.leaveAll(ctx, fresh, err); err != nil {
		return nil, err
	}
	fresh = e.present(fresh)
	return fresh, e.remaining(fresh)
}

// handOver takes memory from processes that were introduced, which wait at their library's gate from then on.
func (e *Engine) handOver(ctx context.Context, fresh []cudaProcess) ([]cudaProcess, error) {
	var all []*given
	for _, p := range fresh {
		if i := slices.IndexFunc(e.given, func(g *given) bool { return g.PID == p.PID && g.library != nil }); i >= 0 {
			all = append(all, e.given[i])
		}
	}
	if len(all) == 0 {
		return fresh, nil
	}
	all, err := e.closeGates(ctx, all, fresh)
	if err == nil {
		err = e.startKeeper(ctx, fresh)
	}
	if err == nil {
		fresh, err = e.awaitKeeper(ctx, fresh)
	}
	if err != nil {
		return nil, err
	}
	if all = talking(all); len(all) == 0 {
		return fresh, nil
	}
	all, err = e.takeAll(ctx, all)
	if err != nil {
		return nil, err
	}
	all, err = e.leaveCrowded(ctx, all, fresh)
	if err != nil {
		return nil, err
	}
	fresh = e.present(fresh)
	if err := e.shown(ctx, fresh, all); err != nil {
		return nil, err
	}
	if err := e.match(ctx, all); err != nil {
		return nil, err
	}
	for i, p := range fresh {
		j := slices.IndexFunc(all, func(g *given) bool { return g.PID == p.PID })
		if j < 0 {
			continue
		}
		fresh[i].able, fresh[i].given, fresh[i].pieces, fresh[i].imports, fresh[i].parted = false, all[j].bytes(), all[j].pieces, all[j].imports, all[j].shares
	}
	if err := e.remaining(fresh); err != nil {
		return nil, err
	}
	if err := e.part(all); err != nil {
		return nil, err
	}
	e.beginHold(ctx, all)
	return fresh, each(all, (*given).release)
}

// shown makes sure that all that processes share is known still, now that the gates are closed, and that each hands over what it shares.
func (e *Engine) shown(ctx context.Context, fresh []cudaProcess, all []*given) (err error) {
	for i, p := range fresh {
		j := slices.IndexFunc(all, func(g *given) bool { return g.PID == p.PID })
		if j < 0 {
			fresh[i].shared = nil
		} else if fresh[i].shared, err = all[j].books(); err != nil {
			return err
		}
	}
	s := e.last
	s.processes = slices.Concat(e.held, fresh)
	if slices.ContainsFunc(all, func(g *given) bool { return g.shares }) {
		if s.facts, err = e.joined(ctx, fresh); err != nil {
			return err
		}
	}
	findings, _, err := preflight(s, []Rule{severalRule, sharedRule, peerRule}, e.Force)
	if err != nil || len(findings) == 0 {
		return err
	}
	return refusedToSave(findings)
}

// takeAll gets descriptors of what all can hand over, and gives those that have not ended meanwhile.
func (e *Engine) takeAll(ctx context.Context, all []*given) ([]*given, error) {
	for _, g := range all {
		err := g.take(record.MaxPieces - e.pieces)
		if err != nil && e.hasEnded(ctx, g) {
			g.hangUp()
			continue
		}
		if err != nil {
			return nil, err
		}
		e.pieces += len(g.pieces)
	}
	return talking(all), nil
}

// take gets descriptors of all that a process can hand over. One with more than so many pieces goes by the driver.
func (g *given) take(most int) error {
	table, err := g.library.Table()
	if err != nil || len(table) > most {
		return err
	}
	files, err := g.library.Give()
	if err != nil {
		return err
	}
	if len(files) != len(table) {
		closeFiles(files)
		return fmt.Errorf("%s: %d descriptors for %d pieces of memory", g.Process, len(files), len(table))
	}
	g.pieces, g.files = table, files
	return nil
}

// release has a process let go of what it has given; it then has its addresses and nothing there.
func (g *given) release() error {
	if len(g.pieces) > 0 || g.shares {
		g.released = true
		if err := g.library.Release(); err != nil {
			return err
		}
	}
	g.library.Leave(context.Background())
	g.library = nil
	return nil
}

// gaveAndEnded returns an error where a process has handed memory over and has ended since: what it gave is in no record.
func (e *Engine) gaveAndEnded(locked []cudaProcess) error {
	for _, g := range e.given {
		if !g.released || g.recorded {
			continue
		}
		if g.recorded = slices.ContainsFunc(locked, func(p cudaProcess) bool { return p.PID == g.PID }); !g.recorded {
			return endedError(g.Process)
		}
	}
	return nil
}

// remaining makes sure that the host has memory for what the driver still has to move.
func (e *Engine) remaining(fresh []cudaProcess) error {
	s := e.last
	s.processes = slices.Concat(e.held, fresh)
	findings, _, err := preflight(s, []Rule{hostMemoryRule}, e.Force)
	if err != nil || len(findings) == 0 {
		return err
	}
	return refusedToSave(findings)
}

// each does something with all side by side.
func each(all []*given, f func(*given) error) error {
	errs := make([]error, len(all))
	var work sync.WaitGroup
	for i, g := range all {
		work.Add(1)
		go func() {
			defer work.Done()
			errs[i] = f(g)
		}()
	}
	work.Wait()
	return errors.Join(errs...)
}
