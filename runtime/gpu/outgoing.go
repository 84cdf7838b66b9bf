package gpu

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/checkpoint"
)

// outgoing is memory on its way from a keeper to who wants it.
type outgoing struct {
	looked chan struct{} // closed when it is known whether there is room for copies
	room   bool          // valid when looked is closed
	wanted chan struct{} // closed when all is to come, whatever else there is to do
	want   func()        // closes it
	over   chan struct{} // closed when it is given up
	giveUp func()        // closes it
	done   chan struct{} // closed when all has come, or cannot
	err    error         // valid when done is closed

	released bool // the keeper has let go of what it sent
}

func newOutgoing() *outgoing {
	o := &outgoing{looked: make(chan struct{}), wanted: make(chan struct{}), over: make(chan struct{}), done: make(chan struct{})}
	o.want = sync.OnceFunc(func() { close(o.wanted) })
	o.giveUp = sync.OnceFunc(func() { close(o.over) })
	return o
}

// errGivenUp is why it does not come.
var errGivenUp = fmt.Errorf("send device memory: it was given up: %w", errdefs.ErrAborted)

// await waits until all is to come.
func (o *outgoing) await() error {
	select {
	case <-o.wanted:
		return nil
	case <-o.over:
		return errGivenUp
	}
}

// send begins to send what the keeper has. Where the processes can go on with copies of their own that waits for [Engine.Drain]: who hashes it would have
// all cores, and CRIU and the driver, with one thread each, hold up the container.
func (e *Engine) send() error {
	peer, err := e.Handover.Peer()
	if err != nil {
		return err
	}
	if peer == nil {
		return fmt.Errorf("send device memory: nobody takes it: %w", errdefs.ErrInternal)
	}
	ctx := context.Background() // see stop
	spare := e.spare()
	h, o := e.keeper, newOutgoing()
	e.outgoing = o
	go func() {
		defer close(o.done)
		defer peer.Close()
		o.room, o.err = h.Room(ctx, nil, spare)
		close(o.looked)
		if o.err == nil && o.room && e.GoesOn {
			o.err = o.await()
		}
		if o.err == nil {
			o.err = h.Send(ctx, peer)
		}
	}()
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

// breakOff ends the keeper, and so what is on its way: processes need the room to go on. Drain says so.
func (e *Engine) breakOff() {
	o := e.outgoing
	e.stop()
	e.outgoing = o
}

// makeRoom is called where there was no room for copies of what the keeper has, whatever was free before: it has all of that sent, and lets go of it. Called again, it
// ends the keeper, whose contexts take room too.
func (e *Engine) makeRoom(ctx context.Context) {
	o := e.outgoing
	if e.keeper == nil || o == nil || o.released {
		e.breakOff()
		return
	}
	o.want()
	<-o.done // bounded by the keeper's client, as long as nothing moves
	if o.released = e.keeper.LetGo(ctx) == nil; !o.released {
		e.breakOff()
	}
}

// result is what came of it, when it is done.
func (o *outgoing) result() error {
	select {
	case <-o.over:
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
	select {
	case <-o.done:
		if err := o.result(); err != nil {
			return checkpoint.Outgoing{}, err
		}
	default:
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

// keep gives up what is on its way unless the processes get copies. What has been sent the keeper lets go of: there may be no room for a piece more before.
func (e *Engine) keep(ctx context.Context) {
	o := e.outgoing
	if o == nil {
		e.stop()
		return
	}
	select {
	case <-o.looked:
	default:
		e.stop()
		return
	}
	if o.room && e.GoesOn {
		return
	}
	select {
	case <-o.done:
		if o.released = o.err == nil && e.keeper != nil && e.keeper.LetGo(ctx) == nil; !o.released {
			e.breakOff()
		}
	default:
		e.stop()
	}
}

// stop ends the keeper, and so what is on its way.
func (e *Engine) stop() {
	if e.keeper == nil {
		return
	}
	h, o := e.keeper, e.outgoing
	e.keeper, e.outgoing = nil, nil
	select {
	case <-closed(o):
		_ = h.Close() // it may have died
	default:
		if o != nil {
			o.giveUp()
		}
		_ = h.Kill()
		select {
		case <-closed(o):
		case <-time.After(waitTime): // a driver that hangs may keep even a killed process
		}
		_ = h.Close()
	}
}

// closed is closed when nothing is on its way.
func closed(o *outgoing) <-chan struct{} {
	if o != nil {
		return o.done
	}
	c := make(chan struct{})
	close(c)
	return c
}
