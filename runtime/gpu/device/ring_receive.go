package device

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// receiver takes what comes.
type receiver struct {
	link *Link
	fail context.CancelCauseFunc

	mu    sync.Mutex
	here  []bool    // by slot: it is ours; guarded by mu
	count int       // of slots that are ours; guarded by mu
	since time.Time // none is ours, and the other side has not said that it waits; guarded by mu
	empty chan struct{}
}

// Receive takes what the other side sends, until its end. sizes are those of the pieces, in bytes. take gets one part after the
// other, in the order they came; its data is the caller's until release is called, once, by any goroutine, also after take has
// returned; take need not call it where it gives an error. When the end has come and all is released, the other side is told
// so. Errors are those of take, of ctx, [ErrHungUp], and of kind Unavailable for a peer that does nothing, InvalidArgument for one that breaks the protocol.
func (l *Link) Receive(ctx context.Context, sizes []int64, take func(c Chunk, release func()) error) error {
	inner, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	r := &receiver{link: l, fail: fail, here: make([]bool, l.memory.geometry.Slots), since: time.Now(), empty: make(chan struct{}, 1)}
	defer l.conn.cutOff(inner)()
	err := r.run(inner, sizes, take)
	if cause := context.Cause(inner); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		l.conn.hangUp()
	}
	return err
}

func (r *receiver) run(ctx context.Context, sizes []int64, take func(c Chunk, release func()) error) error {
	for {
		m, err := r.next()
		if err != nil {
			return err
		}
		switch m.Kind {
		case kindFull:
			if err := m.within(sizes, r.link.memory.geometry); err != nil {
				return err
			}
			release, err := r.took(m.Slot)
			if err != nil {
				return err
			}
			c := Chunk{Piece: m.Piece, Offset: m.Offset, Data: r.link.memory.slot(m.Slot)[:m.Length:m.Length]}
			if err := take(c, release); err != nil {
				return err
			}
		case kindZero, kindSame:
			if err := m.within(sizes, r.link.memory.geometry); err != nil {
				return err
			}
			r.moved()
			c := Chunk{Piece: m.Piece, Offset: m.Offset, Zero: m.Length}
			if m.Kind == kindSame {
				c.Zero, c.Same = 0, m.Length
			}
			if err := take(c, func() {}); err != nil {
				return err
			}
		case kindWait:
			r.moved()
			if r.link.Waits != nil {
				r.link.Waits()
			}
		case kindEnd:
			return r.end(ctx)
		default:
			return broken("a message %q from who sends", m.Kind)
		}
	}
}

// moved makes this side patient anew.
func (r *receiver) moved() {
	r.mu.Lock()
	r.since = time.Now()
	r.mu.Unlock()
}

// next reads a message. While slots are here, it is not the other side's turn.
func (r *receiver) next() (message, error) {
	patience := r.link.Patience
	for wait := patience; ; {
		r.link.conn.Wait(wait)
		m, err := r.link.conn.read()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return m, err
		}
		r.mu.Lock()
		idle := time.Since(r.since)
		if r.count > 0 {
			idle = 0
		}
		r.mu.Unlock()
		if idle >= patience {
			return m, stallError(patience)
		}
		wait = patience - idle
	}
}

// took notes that a slot is ours now.
func (r *receiver) took(slot int) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slot < 0 || slot >= len(r.here) || r.here[slot] {
		return nil, broken("it sends slot %d, which it does not have", slot)
	}
	r.here[slot] = true
	r.count++
	r.link.memory.use()
	return sync.OnceFunc(func() { r.give(slot) }), nil
}

// give gives a slot back. The other side knows of it before it can know of the end.
func (r *receiver) give(slot int) {
	r.link.memory.leave()
	r.mu.Lock()
	r.here[slot] = false // it may come again at once
	r.mu.Unlock()
	if err := r.link.conn.write(message{Kind: kindFree, Slot: slot}); err != nil {
		r.fail(err)
	}
	r.mu.Lock()
	r.count--
	r.since = time.Now()
	none := r.count == 0
	r.mu.Unlock()
	if none {
		select {
		case r.empty <- struct{}{}:
		default:
		}
	}
}

// end waits until all is released, and tells the other side, which says no more and is to be there still.
func (r *receiver) end(ctx context.Context) error {
	r.link.conn.Wait(0)
	go func() {
		_, err := r.link.conn.read() // until the connection is closed
		if err == nil {
			err = broken("a message after the end")
		}
		r.fail(err)
	}()
	for {
		r.mu.Lock()
		none := r.count == 0
		r.mu.Unlock()
		if none {
			return r.link.conn.write(message{Kind: kindDone})
		}
		select {
		case <-r.empty:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
