package holder

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// sendAll copies all that is held to the ring, all devices side by side.
func (s *server) sendAll(ctx context.Context, to *ring.Sender) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, numbers := range s.devices(every) {
		o := &outgoing{pieces: s.pieces, numbers: numbers, to: to, moved: s.count, last: closed}
		for stream := range Streams {
			g.Go(func() error { return o.run(ctx, stream) })
		}
	}
	return g.Wait()
}

// outgoing is what goes from one device.
type outgoing struct {
	pieces []held
	to     *ring.Sender
	moved  func(bytes int64)

	mu      sync.Mutex
	numbers []int         // of the pieces that are not done; guarded by mu
	offset  int64         // in the first; guarded by mu
	last    chan struct{} // closed when the part before the next has been sent; guarded by mu
}

// part is what goes with one slot.
type part struct {
	piece  int
	offset int64
	length int
	slot   *ring.Slot
	before chan struct{} // closed when the part before it has been sent
	sent   chan struct{} // to be closed when it has
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// next gives the next part with a slot for it; nil: there is none. Slots are given in the order of parts: who has one waits only for
// others that have one too.
func (o *outgoing) next(ctx context.Context) (*part, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.numbers) == 0 {
		return nil, nil
	}
	slot, err := o.to.Slot(ctx)
	if err != nil {
		return nil, err
	}
	n := o.numbers[0]
	rest := o.pieces[n].Size - o.offset
	p := &part{piece: n, offset: o.offset, length: int(min(rest, int64(len(slot.Data)))), slot: slot, before: o.last, sent: make(chan struct{})}
	o.last = p.sent
	if o.offset += int64(p.length); o.offset == o.pieces[n].Size {
		o.numbers, o.offset = o.numbers[1:], 0
	}
	return p, nil
}

// run copies parts on one stream, and sends them in their order.
func (o *outgoing) run(ctx context.Context, stream int) error {
	for {
		p, err := o.next(ctx)
		if p == nil || err != nil {
			return err
		}
		if err := o.pieces[p.piece].memory.Read(stream, p.slot.Data[:p.length], p.offset); err != nil {
			p.slot.Return()
			return &PieceError{Number: p.piece, Piece: o.pieces[p.piece].Piece, Err: err}
		}
		select {
		case <-p.before:
		case <-ctx.Done():
			p.slot.Return()
			return context.Cause(ctx)
		}
		if err := p.slot.Send(p.piece, p.offset, p.length); err != nil {
			return err
		}
		close(p.sent)
		o.moved(int64(p.length))
	}
}
