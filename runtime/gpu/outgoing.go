package gpu

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/checkpoint"
)

// outgoing is memory on its way from a holder to who wants it.
type outgoing struct {
	looked chan struct{} // closed when there is a copy, or it is known that there will be none
	copied bool          // valid when looked is closed
	wanted chan struct{} // closed when all is to come, whatever else there is to do
	want   func()        // closes it
	over   chan struct{} // closed when it is given up
	done   chan struct{} // closed when all has come, or cannot
	err    error         // valid when done is closed
}

func newOutgoing() *outgoing {
	o := &outgoing{looked: make(chan struct{}), wanted: make(chan struct{}), over: make(chan struct{}), done: make(chan struct{})}
	o.want = sync.OnceFunc(func() { close(o.wanted) })
	return o
}

// errGivenUp is why a copy does not come.
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

// send begins to send what the holder has. A copy of what a container has that goes on waits for [Engine.Drain]: who hashes it would have all cores, and
// CRIU and the driver, with one thread each, hold up the container.
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
	h, o := e.holder, newOutgoing()
	e.outgoing = o
	go func() {
		defer close(o.done)
		defer peer.Close()
		o.copied, o.err = h.Copy(ctx, spare)
		close(o.looked)
		if o.err == nil && o.copied && e.GoesOn {
			o.err = o.await()
		}
		if o.err == nil {
			o.err = h.Send(ctx, peer)
		}
	}()
	return nil
}

// headroom is what a copy leaves free on a device beside what the driver is to bring back there, bytes: the processes go on to work.
const headroom = 512 << 20

// spare is how much room a copy must leave: the driver has saved the rest of what the processes held, and brings it back while the copy
// is there. What is not told (NVML's of some drivers) is not counted: see giveUpCopy.
func (e *Engine) spare() int64 {
	rest := int64(headroom)
	for _, p := range e.held {
		rest += max(0, memoryOf([]cudaProcess{p})-p.given)
	}
	return rest
}

// giveUpCopy ends the holder, whose copy takes room that processes need to go on. What was on its way is broken off, and Drain says so.
func (e *Engine) giveUpCopy() {
	o := e.outgoing
	e.stop()
	e.outgoing = o
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
		if o.err != nil {
			return checkpoint.Outgoing{}, o.err
		}
	default:
	}
	return checkpoint.Outgoing{Any: true, Copied: o.copied}, nil
}

// Drain implements [checkpoint.Devices].
func (e *Engine) Drain(ctx context.Context) error {
	if e.outgoing == nil {
		return nil
	}
	e.outgoing.want()
	select {
	case <-e.outgoing.done:
		return e.outgoing.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keepCopy gives up what is on its way unless it is a copy: what it is a copy of will not stay as it is.
func (e *Engine) keepCopy() {
	if o := e.outgoing; o != nil {
		select {
		case <-o.looked:
			if o.copied {
				return
			}
		default:
		}
	}
	e.stop()
}

// stop ends the holder, and so what is on its way.
func (e *Engine) stop() {
	if e.holder == nil {
		return
	}
	e.breakHold()
	h, o := e.holder, e.outgoing
	e.holder, e.outgoing = nil, nil
	select {
	case <-closed(o):
		_ = h.Close() // it may have died
	default:
		if o != nil {
			close(o.over)
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
