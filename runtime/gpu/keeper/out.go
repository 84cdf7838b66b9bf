package keeper

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// lanes is how many windows are sent side by side, of all devices together: as many as there may be cores to hash them.
const lanes = 16

// sendAll copies all that is held to the ring, all devices side by side.
func (s *server) sendAll(ctx context.Context, to *ring.Sender) error {
	g, ctx := errgroup.WithContext(ctx)
	devices := s.devices(0)
	for _, numbers := range devices {
		o := &outgoing{pieces: s.pieces, windows: windows(s.pieces, numbers), lanes: max(1, lanes/len(devices)), to: to, moved: s.count, last: closed}
		for stream := range Streams {
			g.Go(func() error { return o.run(ctx, stream) })
		}
	}
	return g.Wait()
}

// span is what one piece has in one window, bytes.
type span struct {
	piece    int
	from, to int64
}

// windows cuts pieces at multiples of [ring.Window] of their addresses. Pieces that follow each other in one window stay together.
func windows(pieces []held, numbers []int) (all [][]span) {
	var last uint64
	for _, n := range numbers {
		p := pieces[n]
		for from := int64(0); from < p.Size; {
			window := (p.Address + uint64(from)) / ring.Window
			to := min(p.Size, int64((window+1)*ring.Window-p.Address))
			if len(all) == 0 || window != last {
				all = append(all, nil)
			}
			all[len(all)-1] = append(all[len(all)-1], span{piece: n, from: from, to: to})
			last, from = window, to
		}
	}
	return all
}

// outgoing is what goes from one device.
type outgoing struct {
	pieces []held
	lanes  int
	to     *ring.Sender
	moved  func(bytes int64)

	mu      sync.Mutex
	windows [][]span      // what is left of each; as many as there are lanes, the first, are on their way; guarded by mu
	turn    int           // which of them is next; guarded by mu
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
	if len(o.windows) == 0 {
		return nil, nil
	}
	slot, err := o.to.Slot(ctx)
	if err != nil {
		return nil, err
	}
	s := o.cut(int64(len(slot.Data)))
	p := &part{piece: s.piece, offset: s.from, length: int(s.to - s.from), slot: slot, before: o.last, sent: make(chan struct{})}
	o.last = p.sent
	return p, nil
}

// cut takes at most so many bytes off the window whose turn it is. One that is through makes room for the first that waits.
func (o *outgoing) cut(most int64) span {
	o.turn %= min(o.lanes, len(o.windows))
	w := o.windows[o.turn]
	s := w[0]
	if s.to-s.from > most {
		s.to = s.from + most
		w[0].from = s.to
	} else {
		o.windows[o.turn] = w[1:]
	}
	switch {
	case len(o.windows[o.turn]) > 0:
		o.turn++
	case len(o.windows) > o.lanes:
		o.windows[o.turn] = o.windows[o.lanes]
		o.windows = slices.Delete(o.windows, o.lanes, o.lanes+1)
		o.turn++
	default:
		o.windows = slices.Delete(o.windows, o.turn, o.turn+1)
	}
	return s
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
			return pieceError(p.piece, o.pieces[p.piece].GPUPiece, err)
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
