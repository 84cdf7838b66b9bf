//go:build cgo

package main

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// lanes is how many windows are sent side by side, of all devices together: as many as there may be cores to hash them.
const lanes = 16

// sendAll copies all that is held to the ring, all devices side by side, and of each as many windows.
func (s *server) sendAll(ctx context.Context, to *device.Sender) error {
	g, ctx := errgroup.WithContext(ctx)
	devices := s.devices(0)
	for _, numbers := range devices {
		idle := make(chan int, streams) // streams that copy nothing
		for stream := range streams {
			idle <- stream
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
					if err := s.sendWindow(ctx, to, w, idle); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	return g.Wait()
}

// sendWindow copies one window, in the order of its addresses. It reports units that contain only zeros, or what was copied ahead, and does not copy them.
func (s *server) sendWindow(ctx context.Context, to *device.Sender, window []span, idle chan int) error {
	for _, w := range window {
		h := s.pieces[w.piece]
		marks := h.of(w)
		for at := w.from; at < w.to; {
			end, what := w.run(marks, at)
			if what != changed {
				say := to.Zero
				if what == same {
					say = to.Same
				}
				if err := say(ctx, w.piece, at, end-at); err != nil {
					return err
				}
				at = end
				s.moved()
				continue
			}
			length := 0
			err := to.Put(ctx, w.piece, at, func(dst []byte) (int, error) {
				length = int(min(int64(len(dst)), end-at))
				stream := <-idle
				defer func() { idle <- stream }()
				if err := h.memory.Read(stream, dst[:length], at); err != nil {
					return 0, device.PieceError(w.piece, h.GPUPiece, err)
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

// mark is what is known of a unit.
type mark byte

const (
	changed mark = iota // it must be copied
	zero                // it contains only zeros
	same                // it is what was copied ahead
)

// lookAll marks what is held from one piece on, all devices side by side. It runs kernels, so it is done while the processes that had the memory stand still: theirs may not give way afterwards.
func (s *server) lookAll(first int) error {
	var g errgroup.Group
	for _, numbers := range s.devices(first) {
		all := windows(s.pieces, numbers)
		todo := make(chan []span, len(all))
		for _, w := range all {
			todo <- w
		}
		close(todo)
		for stream := range streams {
			g.Go(func() error {
				for w := range todo {
					for _, part := range w {
						h := &s.pieces[part.piece]
						if err := h.look(part, stream); err != nil {
							return device.PieceError(part.piece, h.GPUPiece, err)
						}
					}
				}
				return nil
			})
		}
	}
	return g.Wait()
}

// look marks the units of a span, by the device.
func (h *held) look(w span, stream int) error {
	note := func(units []bool, as mark) {
		for i, is := range units {
			if is {
				h.marks[w.from/device.Unit+int64(i)] = as
			}
		}
	}
	if h.device.findsZero() {
		units, err := h.memory.Zero(stream, w.from, w.to-w.from)
		if err != nil {
			return err
		}
		note(units, zero)
	}
	if h.planned != nil {
		units, err := h.planned.same(h.memory, stream, w.from, w.to-w.from)
		if err != nil {
			return err
		}
		note(units, same)
	}
	return nil
}

// of returns the marks of a span; nil: nothing is known of it.
func (h *held) of(w span) []mark {
	if h.marks == nil {
		return nil
	}
	return h.marks[w.from/device.Unit : w.to/device.Unit]
}

// run returns where what begins at an offset ends, all of which has one mark. marks are those of the span's units; nil: nothing is known.
func (w span) run(marks []mark, at int64) (end int64, what mark) {
	if marks == nil {
		return w.to, changed
	}
	what = marks[(at-w.from)/device.Unit]
	for end = at + device.Unit; end < w.to && marks[(end-w.from)/device.Unit] == what; end += device.Unit {
	}
	return end, what
}

// windows cuts pieces at multiples of [device.Window] of their addresses. Pieces that follow each other in one window stay together.
func windows(pieces []held, numbers []int) (all [][]span) {
	var last uint64
	for _, n := range numbers {
		p := pieces[n]
		for from := int64(0); from < p.Size; {
			window := (p.Address + uint64(from)) / device.Window
			to := min(p.Size, int64((window+1)*device.Window-p.Address))
			if len(all) == 0 || window != last {
				all = append(all, nil)
			}
			all[len(all)-1] = append(all[len(all)-1], span{piece: n, from: from, to: to})
			last, from = window, to
		}
	}
	return all
}
