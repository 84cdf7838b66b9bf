package device

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Sender fills slots and sends them. Its methods may be called from several goroutines.
type Sender struct {
	link  *Link
	sizes []int64
	ctx   context.Context
	fail  context.CancelCauseFunc

	free  chan int      // slots that are here and unused
	moved chan struct{} // closed when all was taken
	last  atomic.Int64  // when the other side last did something, ns since start
	start time.Time

	mu      sync.Mutex
	there   []bool // by slot: the other side has it; guarded by mu
	ended   bool   // end is sent; guarded by mu
	flights int    // slots there; guarded by mu
}

// Send has give send what there is to send, tells the other side that this was all, and returns when that has taken everything.
// sizes are those of the pieces, in bytes. The context of give ends when the other side is gone. No slot may be asked for after
// give has returned. Errors are those of give, of ctx, [ErrHungUp], and of kind Unavailable for a peer that does nothing, InvalidArgument for
// one that breaks the protocol.
func (l *Link) Send(ctx context.Context, sizes []int64, give func(ctx context.Context, s *Sender) error) error {
	inner, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	g := l.memory.geometry
	s := &Sender{link: l, sizes: sizes, ctx: inner, fail: fail, free: make(chan int, g.Slots), moved: make(chan struct{}), there: make([]bool, g.Slots), start: time.Now()}
	for n := range g.Slots {
		s.free <- n
	}
	l.conn.Wait(0)
	defer l.conn.cutOff(inner)()
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		if err := s.listen(); err != nil {
			fail(err)
		}
	}()
	err := give(inner, s)
	if err == nil {
		err = s.end()
	}
	if cause := context.Cause(inner); err != nil && cause != nil {
		err = cause // the rest follows from it
	}
	if err != nil {
		l.conn.hangUp()
	}
	<-heard
	return err
}

// end sends the end and waits until all was taken.
func (s *Sender) end() error {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.last.Store(int64(time.Since(s.start)))
	if err := s.link.conn.write(message{Kind: kindEnd}); err != nil {
		return err
	}
	_, err := wait(s.ctx, s, s.moved)
	return err
}

// listen hears what becomes of the slots.
func (s *Sender) listen() error {
	for {
		m, err := s.link.conn.read()
		if err != nil {
			return err
		}
		s.last.Store(int64(time.Since(s.start)))
		switch m.Kind {
		case kindFree:
			if err := s.back(m.Slot); err != nil {
				return err
			}
		case kindDone:
			s.mu.Lock()
			done := s.ended && s.flights == 0
			s.mu.Unlock()
			if !done {
				return broken("it is done before all was taken")
			}
			close(s.moved)
			return nil
		default:
			return broken("a message %q from who receives", m.Kind)
		}
	}
}

// back takes a slot back.
func (s *Sender) back(slot int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot < 0 || slot >= len(s.there) || !s.there[slot] {
		return broken("it frees slot %d, which it does not have", slot)
	}
	s.there[slot] = false
	s.flights--
	s.free <- slot
	return nil
}

// wait waits for the other side.
func wait[T any](ctx context.Context, s *Sender, c <-chan T) (got T, err error) {
	since := time.Since(s.start)
	timer := time.NewTimer(s.link.Patience)
	defer timer.Stop()
	for {
		select {
		case got = <-c:
			return got, nil
		case <-ctx.Done():
			return got, context.Cause(ctx)
		case <-s.ctx.Done():
			return got, context.Cause(s.ctx)
		case <-timer.C:
			idle := time.Since(s.start) - max(since, time.Duration(s.last.Load()))
			if idle >= s.link.Patience {
				err := stallError(s.link.Patience)
				s.fail(err)
				return got, err
			}
			timer.Reset(s.link.Patience - idle)
		}
	}
}

// Put sends a part of a piece that is no longer than a slot: fill gets the room for it, as much of the piece as fits, and says how
// much it has filled. What was there is of no meaning. Of nothing, nothing is sent. It waits for a slot that is free, as long as ctx and the other side live.
func (s *Sender) Put(ctx context.Context, piece int, offset int64, fill func(dst []byte) (n int, err error)) error {
	if piece < 0 || piece >= len(s.sizes) || offset < 0 || offset > s.sizes[piece] {
		return broken("from %d on of piece %d", offset, piece)
	}
	for _, c := range []context.Context{ctx, s.ctx} {
		if c.Err() != nil {
			return context.Cause(c)
		}
	}
	slot, err := wait(ctx, s, s.free)
	if err != nil {
		return err
	}
	s.link.memory.use()
	defer s.link.memory.leave()
	room := s.link.memory.slot(slot)
	n, err := fill(room[:min(int64(len(room)), s.sizes[piece]-offset)])
	if err != nil || n == 0 {
		s.free <- slot
		return err
	}
	m := message{Kind: kindFull, Slot: slot, Piece: piece, Offset: offset, Length: int64(n)}
	if err := m.within(s.sizes, s.link.memory.geometry); err != nil {
		return err
	}
	s.mu.Lock()
	s.there[slot] = true
	s.flights++
	s.mu.Unlock()
	if err := s.link.conn.write(m); err != nil {
		s.fail(err)
		return err
	}
	return nil
}

// Zero sends that so many bytes of a piece are zero.
func (s *Sender) Zero(ctx context.Context, piece int, offset, length int64) error {
	return s.without(ctx, message{Kind: kindZero, Piece: piece, Offset: offset, Length: length})
}

// Same sends that so many bytes of a piece are those that were copied ahead.
func (s *Sender) Same(ctx context.Context, piece int, offset, length int64) error {
	return s.without(ctx, message{Kind: kindSame, Piece: piece, Offset: offset, Length: length})
}

// without sends a message about bytes that takes no slot.
func (s *Sender) without(ctx context.Context, m message) error {
	for _, c := range []context.Context{ctx, s.ctx} {
		if c.Err() != nil {
			return context.Cause(c)
		}
	}
	if err := m.within(s.sizes, s.link.memory.geometry); err != nil {
		return err
	}
	if err := s.link.conn.write(m); err != nil {
		s.fail(err)
		return err
	}
	return nil
}

// Wait tells the other side that what is to be sent next is not here yet: the other side is patient again.
func (s *Sender) Wait() error {
	return s.link.conn.write(message{Kind: kindWait})
}
