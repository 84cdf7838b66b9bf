package gpu

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/gpu/keeper"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// remake has a process make its memory, and fills it with what the files have. Whatever fails, the files have all of it afterwards. The pieces are made by the
// room of the largest, so that no more than that is there twice.
func (g *given) remake(ctx context.Context, f *filler) error {
	var room uint64
	for _, p := range g.pieces {
		room = max(room, p.Size)
	}
	for first := 0; first < len(g.pieces); {
		count, bytes := 0, uint64(0)
		for _, p := range g.pieces[first:] {
			if bytes += p.Size; bytes > room || count == library.MaxMake {
				break
			}
			count++
		}
		if err := f.fill(ctx, g, first, count); err != nil {
			return err
		}
		first += count
	}
	return g.library.Filled()
}

// filler has memory that processes make filled by a keeper, from device to device.
type filler struct {
	// start is [Handover.open].
	start func(ctx context.Context, devices []string) (Keeper, error)

	mu      sync.Mutex // held for a piece: there may be room for no more than one
	keeper  Keeper     // nil: none is there yet; guarded by mu
	started Keeper     // it, where it was started here; guarded by mu
}

// fill has a process make pieces, count from number first on, and fills them. The files of what they were filled from are closed, so that their room is free for the next, and
// those of the pieces take their place: what was filled outlives the process's part in it.
func (f *filler) fill(ctx context.Context, g *given, first, count int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var pieces []keeper.Piece
	for _, p := range g.pieces[first : first+count] {
		pieces = append(pieces, keeper.Piece{Device: p.Device, Size: int64(p.Size)})
	}
	made, err := g.library.Make(ctx, g.pieces, first, count)
	if err != nil {
		return err
	}
	if err := f.copy(ctx, pieces, g.files[first:first+count], made); err != nil {
		closeFiles(made)
		return err
	}
	closeFiles(g.files[first : first+count])
	copy(g.files[first:], made)
	return nil
}

// copy copies pieces. What one keeper cannot do another may. mu is held.
func (f *filler) copy(ctx context.Context, pieces []keeper.Piece, from, to []*os.File) (err error) {
	for range 2 {
		if f.keeper == nil {
			if f.started, err = f.start(ctx, keeper.DevicesOf(pieces)); err != nil {
				return err
			}
			f.keeper = f.started
		}
		if err = f.keeper.Copy(ctx, pieces, from, to); err == nil {
			return nil
		}
		log.G(ctx).WithError(err).Warn("fill device memory")
		f.end()
	}
	return err
}

// end ends what was started.
func (f *filler) end() {
	if f.started != nil {
		_ = f.started.Kill() // it may have ended
		_ = f.started.Close()
	}
	f.keeper, f.started = nil, nil
}

// leaveCrowded leaves processes to the driver where there is no room for a piece beside what it will be filled from. It gives the others.
func (e *Engine) leaveCrowded(ctx context.Context, all []*given, fresh []cudaProcess) ([]*given, error) {
	for _, g := range all {
		if len(g.pieces) == 0 {
			continue
		}
		room, err := e.keeper.Room(ctx, g.largest(), 0)
		if err != nil {
			return nil, fmt.Errorf("%s: look for room to give its device memory back: %w", g.Process, err)
		}
		if room {
			continue
		}
		i := slices.IndexFunc(fresh, func(p cudaProcess) bool { return p.PID == g.PID })
		if err := e.leave(ctx, &fresh[i], "it gets its memory back piece by piece, and there is no room for one piece more on its GPU"); err != nil {
			return nil, err
		}
		e.pieces -= len(g.pieces)
		g.pieces = nil
		g.closeFiles()
		g.hangUp()
	}
	return talking(all), nil
}

// largest is the largest piece on each device.
func (g *given) largest() (pieces []keeper.Piece) {
	for _, p := range g.pieces {
		i := slices.IndexFunc(pieces, func(l keeper.Piece) bool { return l.Device == p.Device })
		if i < 0 {
			i = len(pieces)
			pieces = append(pieces, keeper.Piece{Device: p.Device})
		}
		pieces[i].Size = max(pieces[i].Size, int64(p.Size))
	}
	return pieces
}
