package store

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"
)

// pulledPart is a range of a segment that is fetched before the pull comes to it.
type pulledPart struct {
	off, end int64
	at       int64         // in the source's file
	done     chan struct{} // closed when its bytes are in the file, or when it was removed from the segment
}

// has reports whether the part covers the bytes from from up to to.
func (q *pulledPart) has(from, to int64) bool { return q.off <= from && to <= q.end }

// take waits for a part, and reads its bytes from off on. n is 0 if the part was removed from the segment.
func (g *pulledSegment) take(ctx context.Context, q *pulledPart, p []byte, off int64) (n int, err error) {
	select {
	case <-q.done:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.parts, q) {
		return 0, nil
	}
	return g.source.file.ReadAt(p[:min(int64(len(p)), q.end-off)], q.at+off-q.off)
}

// read reads the bytes that have come by the pull, and those behind them from a part: it waits for a part of another reader, or fetches one itself. ahead says that no reader
// waits for the bytes yet.
func (g *pulledSegment) read(ctx context.Context, p []byte, off int64, ahead bool) error {
	end := off + int64(len(p))
	for {
		q, own, grown := g.claim(off, end)
		switch head := p[:grown-off]; {
		case q == nil && grown < end: // it overlaps another part, and is no frame then
			return g.source.fetch(ctx, g.d, off, p, ahead)
		case own:
			err := g.source.fetch(ctx, g.d, q.off, p[len(head):], ahead)
			g.put(q, p[len(head):], err)
			if err != nil {
				return err
			}
		case q != nil:
			n, err := g.take(ctx, q, p[len(head):], grown)
			if err != nil {
				return err
			}
			if n == 0 {
				continue // it was not fetched, or the pull has it by now
			}
		}
		return g.readGrown(ctx, p[:grown-off], off, ahead)
	}
}

// claim finds out how the bytes from off up to end come. The pull has brought the bytes before grown. The part q brings the others: it is an older part that covers them, or a new one. If
// own, the part is new, and the caller fetches it. q is nil if there are no others, or if a new part would overlap an older one.
func (g *pulledSegment) claim(off, end int64) (q *pulledPart, own bool, grown int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	grown = min(max(off, g.there.Load()), end)
	if grown == end {
		return nil, false, grown
	}
	for i, q := range g.parts {
		switch {
		case q.has(grown, end):
			return q, false, grown
		case q.end > grown && q.off < end:
			return nil, false, grown
		case q.off >= end:
			return g.insert(i, grown, end), true, grown
		}
	}
	return g.insert(len(g.parts), grown, end), true, grown
}

// insert adds a part. g.mu is held.
func (g *pulledSegment) insert(i int, off, end int64) *pulledPart {
	s := g.source
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &pulledPart{off: off, end: end, at: s.end, done: make(chan struct{})}
	s.end += end - off
	g.parts = slices.Insert(g.parts, i, q)
	return q
}

// put writes the bytes of a part to the file. err is why they could not be fetched; then, and if the write fails, the part is removed, and the pull fetches the bytes.
func (g *pulledSegment) put(q *pulledPart, p []byte, err error) {
	if err == nil {
		_, err = g.source.file.WriteAt(p, q.at)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.parts = slices.DeleteFunc(g.parts, func(p *pulledPart) bool { return p == q })
	}
	close(q.done)
}

// readGrown reads bytes that have come by the pull, and fetches them if they cannot be read any more.
func (g *pulledSegment) readGrown(ctx context.Context, p []byte, off int64, ahead bool) error {
	if len(p) == 0 {
		return nil
	}
	g.mu.Lock()
	grows := g.grows
	g.mu.Unlock()
	if grows != nil {
		if n, _ := grows.ReadAt(p, off); n == len(p) {
			return nil
		}
	}
	return g.source.fetch(ctx, g.d, off, p, ahead) // it was damaged, and comes again
}

// partAt returns the part with a byte, or nil.
func (g *pulledSegment) partAt(off int64) *pulledPart {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, q := range g.parts {
		if q.has(off, off+1) {
			return q
		}
	}
	return nil
}

// gap returns where the next part after off begins, or end if that comes first.
func (g *pulledSegment) gap(off, end int64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, q := range g.parts {
		if q.end > off {
			return max(off, min(q.off, end))
		}
	}
	return end
}

// forget removes parts whose bytes have come by the pull, too. g.mu is held.
func (g *pulledSegment) forget(there int64) {
	for len(g.parts) > 0 && g.parts[0].end <= there && closed(g.parts[0].done) {
		q := g.parts[0]
		g.parts = g.parts[1:]
		_ = unix.Fallocate(int(g.source.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.at, q.end-q.off) // where that cannot be, it takes room until the end
	}
}

// drop removes parts that turned out to be damaged; the pull fetches their bytes again.
func (g *pulledSegment) drop(from, to int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.parts = slices.DeleteFunc(g.parts, func(q *pulledPart) bool { return closed(q.done) && q.off < to && from < q.end })
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
