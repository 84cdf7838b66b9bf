package keeper

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// lanes is how many windows are sent side by side, of all devices together: as many as there may be cores to hash them.
const lanes = 16

// sendAll copies all that is held to the ring, all devices side by side, and of each as many windows.
func (s *server) sendAll(ctx context.Context, to *ring.Sender) error {
	g, ctx := errgroup.WithContext(ctx)
	devices := s.devices(0)
	for _, numbers := range devices {
		streams := make(chan int, Streams) // that copy nothing
		for stream := range Streams {
			streams <- stream
		}
		all := windows(s.pieces, numbers)
		todo := make(chan []span, len(all))
		for _, w := range all {
			todo <- w
		}
		close(todo)
		for range max(1, lanes/len(devices)) {
			g.Go(func() error {
				for w := range todo {
					if err := s.sendWindow(ctx, to, w, streams); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	return g.Wait()
}

// sendWindow copies one window, in the order of its addresses.
func (s *server) sendWindow(ctx context.Context, to *ring.Sender, window []span, streams chan int) error {
	for _, w := range window {
		h := s.pieces[w.piece]
		for at := w.from; at < w.to; {
			length := 0
			err := to.Put(ctx, w.piece, at, func(dst []byte) (int, error) {
				length = int(min(int64(len(dst)), w.to-at))
				stream := <-streams
				defer func() { streams <- stream }()
				if err := h.memory.Read(stream, dst[:length], at); err != nil {
					return 0, pieceError(w.piece, h.GPUPiece, err)
				}
				return length, nil
			})
			if err != nil {
				return err
			}
			at += int64(length)
			s.moved()
		}
	}
	return nil
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
