package gpu

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// outgoing is memory on its way from a keeper to the process that wants it.
type outgoing struct {
	*task                // is over when all has come, or cannot
	looked chan struct{} // closed when it is known whether there is room for copies
	room   bool          // valid when looked is closed
	wanted chan struct{} // closed when all is to come, whatever else there is to do
	want   func()        // closes it
	gone   chan struct{} // closed when it is given up
	giveUp func()        // closes it
}

func newOutgoing() *outgoing {
	o := &outgoing{looked: make(chan struct{}), wanted: make(chan struct{}), gone: make(chan struct{})}
	o.want = sync.OnceFunc(func() { close(o.wanted) })
	o.giveUp = sync.OnceFunc(func() { close(o.gone) })
	return o
}

// errGivenUp is why it does not come.
var errGivenUp = fmt.Errorf("send device memory: it was given up: %w", errdefs.ErrAborted)

// await waits until all is to come.
func (o *outgoing) await() error {
	select {
	case <-o.wanted:
		return nil
	case <-o.gone:
		return errGivenUp
	}
}

// send begins to send what the keeper has. Where the processes can go on with copies of their own that waits for [Engine.Drain]: who hashes it would have
// all cores, and CRIU and the driver, with one thread each, hold up the container.
func (e *Engine) send() error {
	peer, err := e.Peer()
	if err != nil {
		return err
	}
	if peer == nil {
		return fmt.Errorf("send device memory: no process takes it: %w", errdefs.ErrInternal)
	}
	ctx := context.Background() // see stop
	spare := e.spare()
	h, o := e.keeper, newOutgoing()
	e.outgoing = o
	o.task = beside(func() (err error) {
		defer peer.Close()
		o.room, err = h.Room(ctx, nil, spare)
		close(o.looked)
		if err == nil && o.room && e.GoesOn {
			err = o.await()
		}
		if err == nil {
			err = h.Send(ctx, peer)
		}
		return err
	})
	return nil
}

// headroom is what copies leave free on a device beside what the driver is to bring back there, bytes: the processes go on to work.
const headroom = 512 << 20

// spare is how much room copies must leave: the driver has saved the rest of what the processes held, and brings it back before they are
// made. What is not told (NVML's of some drivers) is not counted: see breakOff and sent.
func (e *Engine) spare() int64 {
	rest := int64(headroom)
	for _, p := range e.held {
		rest += max(0, memoryOf([]cudaProcess{p})-p.given)
	}
	return rest
}

// breakOff ends the keeper, and lets go of what it alone would have been for: processes need the room to go on. What was on its way is broken off, and
// Drain says so.
func (e *Engine) breakOff() {
	o := e.outgoing
	e.stop()
	e.outgoing = o
	for _, g := range e.given {
		if g.settled {
			g.closeFiles()
		}
	}
}

// sent waits until all that processes gave has been sent, or cannot be, and ends the keeper. One that has found no room for a copy, whatever was
// free before, goes on with that memory itself; until then it waits at its gate.
func (o *outgoing) sent(h *device.Keeper) {
	o.want()
	<-o.done // bounded by the keeper's client, as long as nothing moves
	_ = h.Close()
}

// doubt gives up what a process may have written to meanwhile.
func (o *outgoing) doubt(h *device.Keeper) {
	o.giveUp()
	_ = h.Kill() // it may have ended
}

// result is what came of it, when it is done.
func (o *outgoing) result() error {
	select {
	case <-o.gone:
		return cmp.Or(o.err, errGivenUp)
	default:
		return o.err
	}
}

// Outgoing implements [checkpoint.Devices].
func (e *Engine) Outgoing(ctx context.Context) (checkpoint.Outgoing, error) {
	o := e.outgoing
	if o == nil {
		return checkpoint.Outgoing{}, nil
	}
	select {
	case <-o.looked:
	case <-ctx.Done():
		return checkpoint.Outgoing{}, context.Cause(ctx)
	}
	if o.over() {
		if err := o.result(); err != nil {
			return checkpoint.Outgoing{}, err
		}
	}
	return checkpoint.Outgoing{Any: true, Copied: o.room}, nil
}

// Drain implements [checkpoint.Devices].
func (e *Engine) Drain(ctx context.Context) error {
	if e.outgoing == nil {
		return nil
	}
	e.outgoing.want()
	select {
	case <-e.outgoing.done:
		return e.outgoing.result()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keep gives up what is on its way unless the processes get copies: otherwise they go on with it, and it will not stay as it is.
func (e *Engine) keep() {
	if o := e.outgoing; o != nil {
		select {
		case <-o.looked:
			if h := e.keeper; o.room && h != nil {
				for _, g := range e.given {
					g.alone, g.doubt = func() { o.sent(h) }, func() { o.doubt(h) }
				}
				return
			}
		default:
		}
	}
	e.stop()
}

// stop ends the keeper, and so what is on its way.
func (e *Engine) stop() {
	if e.keeper == nil {
		return
	}
	h, o, holding := e.keeper, e.outgoing, e.holding
	e.keeper, e.outgoing, e.holding = nil, nil, nil
	var sending *task
	if o != nil {
		sending = o.task
	}
	if !sending.over() {
		o.giveUp()
	}
	if !sending.over() || !holding.over() {
		_ = h.Kill()
		sending.wait()
		holding.wait()
	}
	_ = h.Close() // it may have died
}
