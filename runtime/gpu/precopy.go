package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

const (
	// precopyLeast is the least device memory that is worth it, bytes: less is sent in some hundredths of a second.
	precopyLeast = 64 << 20
	// precopyPart is how much of a piece is copied at once, bytes: for so long a program that frees the piece waits.
	precopyPart = 32 << 20
	// precopySide is how many windows are copied by turns: each is hashed by one core.
	precopySide = 16
	// sayTime is how often a library must hear something, or it hangs up.
	sayTime = 20 * time.Second
	// lendTime is how long libraries may take in all to lend what is copied: some tenths of a millisecond each time.
	lendTime = 30 * time.Second
)

// planned is a piece that was copied while its process ran.
type planned struct {
	pid int
	record.GPUPiece
}

// precopying is one copy of what processes have while they run.
type precopying struct {
	keeper *device.Keeper
	owners []*given
	pieces []planned // in the order of owners, ascending
	owner  []*given  // by piece
	heard  map[*given]time.Time
	lends  time.Duration // so far
}

// precopy copies what processes would hand over while they run, once, where it has no room for copies on its devices: when they stand still only what has changed is sent. Whatever comes of that, the processes
// run on, and nothing is lost but time; an error is one of the checkpoint. Beside a process that the driver has restored nothing may run on its devices ([given.stood]), so there is no keeper yet, and nothing is copied. It returns
// those that have not ended meanwhile.
func (e *Engine) precopy(ctx context.Context, fresh []cudaProcess) ([]cudaProcess, error) {
	ready := talking(e.given)
	if e.Precopy == nil || !e.GoesOn || e.planned != nil || len(ready) == 0 || e.keeper == nil {
		return fresh, nil
	}
	e.planned = map[planned]int{} // it is tried once
	p := &precopying{keeper: e.keeper, owners: ready, heard: map[*given]time.Time{}}
	stop := context.AfterFunc(ctx, func() { _ = p.keeper.Kill() }) // a receiver may let it wait for long; it may have ended
	begun, err := p.begin(ctx, e, fresh)
	if begun && err == nil {
		err = p.copy(ctx, e)
	}
	if !stop() && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	switch {
	case err != nil:
		log.G(ctx).WithError(err).Warn("copy device memory while its processes run; it is copied while they stand still")
		if fresh, err = e.afresh(ctx, fresh); err != nil {
			return nil, err
		}
	case begun:
		for n, piece := range p.pieces {
			e.planned[piece] = n + 1
		}
	}
	return e.present(fresh), nil
}

// begin lists what there is, and has the keeper get ready and the checkpoint process open its end. It returns false where there is nothing to gain, or a device cannot.
func (p *precopying) begin(ctx context.Context, e *Engine, fresh []cudaProcess) (bool, error) {
	g := e.record.GPU
	g.Processes, g.Forced = nil, nil
	var bytes int64
	for _, owner := range p.owners {
		pieces, err := owner.library.Places()
		var call *device.CallError
		if errors.As(err, &call) || err != nil && e.hasEnded(ctx, owner) {
			continue // an older library
		}
		if err != nil {
			return false, err
		}
		if len(p.pieces)+len(pieces) > record.MaxPieces {
			return false, nil
		}
		for _, piece := range pieces {
			p.pieces, p.owner = append(p.pieces, planned{owner.PID, piece}), append(p.owner, owner)
			bytes += piece.Size
		}
		if len(pieces) > 0 {
			g.Processes = append(g.Processes, record.GPUProcess{PID: owner.Inner, Command: owner.Command, Devices: device.DevicesOf(pieces), Pieces: pieces})
		}
	}
	if bytes < precopyLeast {
		return false, nil
	}
	room, err := p.keeper.Room(ctx, p.totals(), headroom+max(0, memoryOf(fresh)-bytes))
	if err != nil || room {
		return false, err
	}
	if able, err := p.keeper.Plan(ctx, p.all()); err != nil || !able {
		return false, err
	}
	if err := g.Check(); err != nil {
		return false, err
	}
	peer, err := e.Precopy(&g)
	if err != nil || peer == nil {
		return false, err
	}
	return true, p.keeper.Begin(ctx, peer)
}

// all are the pieces as the keeper knows them.
func (p *precopying) all() []record.GPUPiece {
	all := make([]record.GPUPiece, len(p.pieces))
	for n, piece := range p.pieces {
		all[n] = piece.GPUPiece
	}
	return all
}

// totals are pieces of the sizes of all there are on each device.
func (p *precopying) totals() (totals []record.GPUPiece) {
	all := p.all()
	for _, uuid := range device.DevicesOf(all) {
		total := record.GPUPiece{Device: uuid}
		for _, piece := range all {
			if piece.Device == uuid {
				total.Size += piece.Size
			}
		}
		totals = append(totals, total)
	}
	return totals
}

// copy copies all that was planned.
func (p *precopying) copy(ctx context.Context, e *Engine) error {
	start := time.Now()
	todo := p.windows()
	var side [][]device.Part
	for turn := 0; len(side)+len(todo) > 0; turn++ {
		for len(side) < precopySide && len(todo) > 0 {
			side, todo = append(side, todo[0]), todo[1:]
		}
		n := turn % len(side)
		if err := p.part(ctx, e, side[n][0]); err != nil {
			return err
		}
		if side[n] = side[n][1:]; len(side[n]) == 0 {
			side = append(side[:n], side[n+1:]...)
		}
		if err := p.say(ctx, e); err != nil {
			return err
		}
	}
	err := p.keeper.Precopied(ctx)
	log.G(ctx).WithField("seconds", time.Since(start).Seconds()).WithField("pieces", len(p.pieces)).Debug("device memory is copied while its processes run")
	return err
}

// windows are what lies between two multiples of [device.Window] of a process's addresses on a device, in parts that are copied at once.
func (p *precopying) windows() (all [][]device.Part) {
	type key struct {
		pid    int
		device string
		number uint64
	}
	at := map[key]int{}
	for n, piece := range p.pieces {
		for offset := int64(0); offset < piece.Size; {
			address := piece.Address + uint64(offset)
			k := key{piece.pid, piece.Device, address / device.Window}
			length := min(piece.Size-offset, int64((k.number+1)*device.Window-address), precopyPart)
			if _, known := at[k]; !known {
				at[k] = len(all)
				all = append(all, nil)
			}
			all[at[k]] = append(all[at[k]], device.Part{Piece: n, Offset: offset, Length: length})
			offset += length
		}
	}
	return all
}

// part copies a part. What is gone is taken for zeros: what is there in its place when the process stands still differs from that, or is zero.
func (p *precopying) part(ctx context.Context, e *Engine, part device.Part) error {
	owner := p.owner[part.Piece]
	file, err := p.lend(ctx, e, owner, p.pieces[part.Piece].GPUPiece)
	if err != nil || file == nil {
		if err == nil {
			err = p.keeper.Precopy(ctx, part, nil)
		}
		return err
	}
	err = p.keeper.Precopy(ctx, part, file)
	file.Close()
	if returned := owner.library.Return(); err == nil && returned != nil && !e.hasEnded(ctx, owner) {
		err = returned
	}
	p.heard[owner] = time.Now()
	return err
}

// lend asks a process for a descriptor; nil: it has the piece no more.
func (p *precopying) lend(ctx context.Context, e *Engine, owner *given, piece record.GPUPiece) (*os.File, error) {
	start := time.Now()
	file, err := owner.library.Lend(piece)
	if p.lends += time.Since(start); err == nil && p.lends > lendTime {
		file.Close()
		return nil, fmt.Errorf("%s: its library takes too long to lend memory: %s in all: %w", owner.Process, p.lends, errdefs.ErrUnavailable)
	}
	var call *device.CallError
	if errors.As(err, &call) && call.Code == library.NotFound || err != nil && e.hasEnded(ctx, owner) {
		return nil, nil
	}
	return file, err
}

// say says something to the libraries that have heard nothing for a while.
func (p *precopying) say(ctx context.Context, e *Engine) error {
	for _, owner := range p.owners {
		if p.heard[owner].IsZero() {
			p.heard[owner] = time.Now()
		}
		if time.Since(p.heard[owner]) < sayTime {
			continue
		}
		p.heard[owner] = time.Now()
		if _, err := owner.library.Hello(); err != nil && !e.hasEnded(ctx, owner) {
			return err
		}
	}
	return nil
}

// afresh starts another keeper, and talks anew to processes that may have hung up. It returns those that have not ended meanwhile. If no keeper can take memory, the driver saves them.
func (e *Engine) afresh(ctx context.Context, fresh []cudaProcess) ([]cudaProcess, error) {
	_ = e.keeper.Kill() // it may have ended
	_ = e.keeper.Close()
	e.keeper = nil
	for _, g := range talking(e.given) {
		if _, err := g.library.Hello(); err == nil {
			continue
		}
		g.hangUp()
		if _, err := g.dial(ctx); err != nil && !e.hasEnded(ctx, g) {
			return nil, err
		}
	}
	if err := e.startKeeper(ctx, fresh); err != nil {
		return nil, err
	}
	if e.keeper == nil { // it has not started, or all that would hand memory over have ended
		fresh = e.present(fresh)
		return fresh, e.remaining(fresh)
	}
	return e.awaitKeeper(ctx, fresh)
}
