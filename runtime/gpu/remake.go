package gpu

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// invalidDevice is CUDA_ERROR_INVALID_DEVICE of cuda.h: a process's driver takes memory that comes by a descriptor for that of another GPU, or of none. It goes by
// the numbers that GPUs had where the process was started, so no further attempt changes that. Seen with driver 580 on two H200.
const invalidDevice = 101

// remake has a process make its memory, and fills it with what the files have. Whatever fails, the files have all of it afterwards.
func (g *given) remake(ctx context.Context, f *filler) error {
	for n := range g.pieces {
		if err := f.fill(ctx, g, n); err != nil {
			if noRoom(err) && g.alone != nil {
				g.alone() // for the next attempt
			}
			return err
		}
	}
	return g.library.Filled()
}

// filler has memory that processes make filled by a keeper, from device to device.
type filler struct {
	mu      sync.Mutex     // held for a piece: there may be room for no more than one
	keeper  *device.Keeper // nil: none is there yet; guarded by mu
	started *device.Keeper // it, where it was started here; guarded by mu
}

// fill has a process make a piece, and fills it. The file of what it was filled from is closed, so that its room is free for the next, and that of the piece takes
// its place: what was filled outlives the process's part in it.
func (f *filler) fill(ctx context.Context, g *given, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := g.pieces[n]
	timed, cancel := context.WithTimeout(ctx, moveTime(p.Size))
	defer cancel()
	made, err := g.library.Make(timed, g.pieces, n)
	if err != nil {
		return err
	}
	if err := f.copy(ctx, p, g.files[n], made); err != nil {
		made.Close()
		return err
	}
	g.files[n].Close()
	g.files[n] = made
	return nil
}

// copy copies a piece. What one keeper cannot do another may. mu is held.
func (f *filler) copy(ctx context.Context, p record.GPUPiece, from, to *os.File) (err error) {
	for range 2 {
		if f.keeper == nil {
			if f.started, err = openKeeper(ctx, []string{p.Device}); err != nil {
				return err
			}
			f.keeper = f.started
		}
		if err = f.keeper.Copy(ctx, p, from, to); err == nil {
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
		_ = f.started.Close() // it may have ended
	}
	f.keeper, f.started = nil, nil
}

// leaveCrowded leaves processes to the driver that would have to make their memory again, where there is no room for a piece beside what it is filled from. It gives
// the others.
func (e *Engine) leaveCrowded(ctx context.Context, all []*given, fresh []cudaProcess) ([]*given, error) {
	for _, g := range all {
		if !g.mistaken || len(g.pieces) == 0 {
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
		if err := e.leave(ctx, &fresh[i], "it was restored onto a GPU with another number, where it gets its memory back piece by piece, and there is no room for one piece more"); err != nil {
			return nil, err
		}
		e.pieces -= len(g.pieces)
		g.pieces = nil
		g.closeFiles()
		if err := e.giveUp(ctx, g); err != nil {
			return nil, err
		}
	}
	return talking(all), nil
}

// largest is the largest piece on each device.
func (g *given) largest() (pieces []record.GPUPiece) {
	for _, p := range g.pieces {
		i := slices.IndexFunc(pieces, func(l record.GPUPiece) bool { return l.Device == p.Device })
		if i < 0 {
			i = len(pieces)
			pieces = append(pieces, record.GPUPiece{Device: p.Device})
		}
		pieces[i].Size = max(pieces[i].Size, p.Size)
	}
	return pieces
}
