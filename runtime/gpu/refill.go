package gpu

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// refill has processes make all of their memory and then loads it anew, for want of room for what was loaded beside it.
func (r *Restore) refill(ctx context.Context, restored []cudaProcess) (err error) {
	r.coming.end()
	r.coming = nil
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	r.coming = c // it is ended with the restore
	if err := c.keeper.Open(keeper.DevicesOf(Pieces(&r.Record.GPU, r.places))); err != nil {
		return err
	}
	var all []*given
	defer func() {
		for _, g := range all {
			g.drop()
		}
	}()
	for _, g := range r.owners(restored) {
		all = append(all, g)
		if err := g.make(ctx, r.Handover.Dial); err != nil {
			return err
		}
	}
	all = slices.DeleteFunc(all, func(g *given) bool { return g.library == nil })
	callOff := stayAwake(all)
	err = r.fill(ctx, c, all)
	callOff()
	if err != nil {
		return err
	}
	// Only when all have theirs: those that work together go on together.
	for _, step := range []func(Owner) error{Owner.Filled, Owner.Open} {
		err := each(all, func(g *given) error {
			if err := step(g.library); err != nil && r.host().alive(g.PID) {
				return fmt.Errorf("%s: let it go on with its device memory: %w", g.Process, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sayTime is how often a library hears from its host while memory is loaded: it waits for no longer than a minute.
var sayTime = 20 * time.Second

// stayAwake has libraries keep what they have made, until it is called off.
func stayAwake(all []*given) (callOff func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-time.After(sayTime):
			case <-done:
				return
			}
			for _, g := range all {
				_, _ = g.library.Hello() // one that has hung up is noticed later
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// owners are the processes that are to have memory which was handed over, without files of it.
func (r *Restore) owners(restored []cudaProcess) (all []*given) {
	next := 0
	for _, saved := range r.Record.Processes {
		first := next
		next += len(saved.Pieces)
		i := slices.IndexFunc(restored, func(p cudaProcess) bool { return p.Inner == saved.PID })
		if i < 0 || len(saved.Pieces) == 0 {
			continue
		}
		g := &given{cudaProcess: restored[i], first: first}
		for n, piece := range saved.Pieces {
			at := slices.IndexFunc(r.Record.Devices, func(d spec.GPUDevice) bool { return d.UUID == piece.Device }) // see pieces
			g.pieces = append(g.pieces, library.Piece{Number: uint32(n), Address: piece.Address, Size: uint64(piece.Size), Device: r.places[at].UUID})
		}
		all = append(all, g)
	}
	return all
}

// make has a process make its memory, and keeps the conversation, without which it has none. There is none with one that has its memory.
func (g *given) make(ctx context.Context, dial func(ctx context.Context, pid int) (Owner, error)) error {
	ctx, cancel := context.WithTimeout(ctx, moveTime(g.bytes()))
	defer cancel()
	hello, err := g.dial(ctx, dial)
	if err == nil && hello.State != library.Given {
		g.hangUp()
		return nil
	}
	for n := 0; err == nil && n < len(g.pieces); n++ {
		var made *os.File
		if made, err = g.library.Make(ctx, g.pieces, n); err == nil {
			g.files = append(g.files, made)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: make device memory: %w", g.Process, err)
	}
	return nil
}

// fill has what processes have made filled with what they are to have, which is brought anew. All comes that was recorded; what nobody wants goes nowhere.
func (r *Restore) fill(ctx context.Context, c *coming, all []*given) error {
	defer context.AfterFunc(ctx, func() { _ = c.keeper.Kill() })() // it may have ended
	pieces := Pieces(&r.Record.GPU, r.places)
	err := c.keeper.Ready(ctx)
	if err != nil {
		return err
	}
	next := 0
	for _, saved := range r.Record.Processes {
		if len(saved.Pieces) == 0 {
			continue
		}
		some := pieces[next : next+len(saved.Pieces)]
		if i := slices.IndexFunc(all, func(g *given) bool { return g.first == next }); i >= 0 {
			err = c.keeper.Hold(ctx, some, all[i].files)
		} else {
			var unwanted []*os.File
			unwanted, err = c.keeper.Make(ctx, some)
			closeFiles(unwanted)
		}
		if err != nil {
			return err
		}
		next += len(some)
	}
	if err := c.keeper.Clear(ctx); err != nil { // what is zero does not come
		return err
	}
	<-c.brought
	if c.unable != nil {
		return c.unable
	}
	c.done = make(chan struct{})
	c.receive()
	return c.err
}
