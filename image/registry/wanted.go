package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
)

// Wanted reads parts of a puller's segments that somebody waits for, ahead of all that [Puller.Finish] fetches. What comes either way is not fetched again the other
// way.
type Wanted struct {
	ranges *Ranges
	dst    *store.Store
	file   *os.File // without a name: what has come ahead of the rest of its segment

	mu       sync.Mutex
	end      int64                            // of file; guarded by mu
	segments map[digest.Digest]*wantedSegment // guarded by mu
}

// wantedSegment is what has come of a segment. Its fields are guarded by the mu of Wanted.
type wantedSegment struct {
	d       ocispec.Descriptor
	growing *store.Growing
	came    int64         // bytes from the begin, by the pull
	asked   int64         // the pull has asked for what is before that; came: for nothing
	more    chan struct{} // closed when the pull has brought more, or will not; nil: nobody waits for that
	parts   []*part       // that have come otherwise, or will, by offset, without overlap
}

// part is some bytes that somebody wants, or wanted.
type part struct {
	off, n int64
	at     int64         // in the file
	kept   []byte        // instead of there, where that could not be; valid when done is closed
	done   chan struct{} // closed when they are there, or the part is none any more
}

func (q *part) end() int64 { return q.off + q.n }

// there says whether a part has come.
func (q *part) there() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// Wanted has Finish, which is called later, fetch segments in parts, and gives what reads others meanwhile. The registry must serve parts of blobs.
func (p *Puller) Wanted() (*Wanted, error) {
	f, err := os.CreateTemp(p.dst.Root(), "wanted-")
	if err == nil {
		err = os.Remove(f.Name()) // nobody has to clear up after a process that was killed
	}
	if err != nil {
		return nil, fmt.Errorf("make a file for what is wanted first: %w", err)
	}
	p.wanted = &Wanted{ranges: p.Ranges(), dst: p.dst, file: f, segments: make(map[digest.Digest]*wantedSegment)}
	return p.wanted, nil
}

// Close closes what is open. Nobody may read any more. It may be called on nil.
func (w *Wanted) Close() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.segments {
		_ = s.growing.Close() // nothing was written
	}
	_ = w.file.Close() // it is gone
}

// Read brings len(p) bytes of a segment from off on. They are not verified. ahead: nobody waits for them yet.
func (w *Wanted) Read(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, ahead bool) error {
	ahead = ahead && !w.ranges.repo.line.soon(int64(len(p)))
	for len(p) > 0 {
		// First what nobody has asked for: the pull would be further every time that somebody looks.
		own, err := w.missing(ctx, d, off, p, ahead)
		if err != nil {
			return err
		}
		for look := true; look && len(p) > 0; {
			n := len(p)
			if len(own) > 0 && own[0].off == off {
				n = int(own[0].n) // they are in p
				own = own[1:]
			} else {
				if len(own) > 0 {
					n = int(own[0].off - off)
				}
				if n, look, err = w.some(ctx, d, off, p[:n]); err != nil {
					return err
				}
			}
			off, p = off+int64(n), p[n:]
		}
	}
	return nil
}

// ReadAgain is Read of what turned out to be damaged: it comes from the registry once more.
func (w *Wanted) ReadAgain(ctx context.Context, d ocispec.Descriptor, off int64, p []byte) error {
	w.mu.Lock()
	if s := w.segments[d.Digest]; s != nil {
		s.parts = slices.DeleteFunc(s.parts, func(q *part) bool { return q.there() && q.off < off+int64(len(p)) && off < q.end() })
	}
	w.mu.Unlock()
	return w.ranges.Read(ctx, d, off, p, unverified)
}

// unverified is for bytes that their reader verifies.
func unverified([]byte) error { return nil }

// segment gives what there is of one. w.mu is held.
func (w *Wanted) segment(d ocispec.Descriptor) (*wantedSegment, error) {
	s := w.segments[d.Digest]
	if s == nil {
		g, err := w.dst.Growing(d)
		if err != nil {
			return nil, err
		}
		s = &wantedSegment{d: d, growing: g}
		w.segments[d.Digest] = s
	}
	return s, nil
}

// missing fetches what nobody has asked for, and says what that was.
func (w *Wanted) missing(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, ahead bool) (own []*part, err error) {
	for from, end := off, off+int64(len(p)); from < end; {
		q, t, err := w.claim(ctx, d, from, end, ahead)
		if q == nil || err != nil {
			return own, err
		}
		if err := w.bring(ctx, d, q, p[q.off-off:][:q.n], t); err != nil {
			return own, err
		}
		own, from = append(own, q), q.end()
	}
	return own, nil
}

// claim claims the first bytes of a range that nobody has asked for; nil: there are none. What somebody waits for is claimed before its turn comes, so that the pull
// does not ask for it meanwhile.
func (w *Wanted) claim(ctx context.Context, d ocispec.Descriptor, from, end int64, ahead bool) (q *part, t *turn, err error) {
	for {
		w.mu.Lock()
		s, err := w.segment(d)
		if err != nil {
			w.mu.Unlock()
			return nil, nil, err
		}
		first, to := s.gap(from, end)
		if first < to && (!ahead || t != nil) {
			if t != nil {
				to = min(to, first+t.most)
				t.shorten(to - first)
			}
			q = w.add(s, first, to-first)
		}
		w.mu.Unlock()
		if q != nil {
			return q, t, nil
		}
		if first == to {
			if t != nil {
				t.end()
			}
			return nil, nil, nil
		}
		if t, err = w.ranges.repo.line.begin(ctx, to-first, rest); err != nil {
			return nil, nil, err
		}
	}
}

// bring fetches what was claimed.
func (w *Wanted) bring(ctx context.Context, d ocispec.Descriptor, q *part, p []byte, t *turn) error {
	err := w.ranges.read(ctx, d, q.off, p, unverified, t)
	if err == nil {
		if _, err := w.file.WriteAt(p, q.at); err != nil {
			q.kept = bytes.Clone(p) // the pull says what is wrong with the disk
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil { // who else wants it fetches it
		s := w.segments[d.Digest]
		s.parts = slices.DeleteFunc(s.parts, func(p *part) bool { return p == q })
	}
	close(q.done)
	return err
}

// some reads bytes where they are, or waits where they come: it may be that there are none then. Where nobody brings them any more look is false.
func (w *Wanted) some(ctx context.Context, d ocispec.Descriptor, off int64, p []byte) (n int, look bool, err error) {
	w.mu.Lock()
	s, err := w.segment(d)
	if err != nil {
		w.mu.Unlock()
		return 0, false, err
	}
	q := s.at(off)
	switch {
	case off < s.came:
		p = p[:min(int64(len(p)), s.came-off)]
		w.mu.Unlock()
		if there, err := s.growing.There(); err == nil && there >= off+int64(len(p)) {
			if n, _ := s.growing.ReadAt(p, off); n == len(p) {
				return n, true, nil
			}
		}
		return len(p), true, w.ranges.Read(ctx, d, off, p, unverified) // it was damaged, and comes again
	case q != nil && q.there():
		defer w.mu.Unlock() // or the pull has it meanwhile
		n, err = w.take(q, off, p)
		return n, true, err
	case q != nil:
		w.mu.Unlock()
		return 0, true, wait(ctx, q.done)
	case off < s.asked:
		if s.more == nil {
			s.more = make(chan struct{})
		}
		more := s.more
		w.mu.Unlock()
		late, cancel := context.WithTimeout(ctx, stuck)
		defer cancel()
		if err := wait(late, more); err == nil || ctx.Err() != nil {
			return 0, true, err
		}
		w.mu.Lock()
		if s.more == more {
			s.asked = s.came
		}
	}
	w.mu.Unlock()
	return 0, false, nil
}

// wait waits for a channel to be closed.
func wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take reads some of a part that is there. w.mu is held.
func (w *Wanted) take(q *part, off int64, p []byte) (int, error) {
	p = p[:min(int64(len(p)), q.end()-off)]
	if q.kept != nil {
		return copy(p, q.kept[off-q.off:]), nil
	}
	return w.file.ReadAt(p, q.at+off-q.off)
}

// at gives the part with a byte, or nil.
func (s *wantedSegment) at(off int64) *part {
	for _, q := range s.parts {
		if q.off <= off && off < q.end() {
			return q
		}
	}
	return nil
}

// partSoon is how much the pull may have asked for at once for who wants some of it to wait for that. More is asked for where the line is quick: there it is better
// to ask for the part as well.
const partSoon = 1 << 20

// stuck is for how long what the pull has asked for may bring nothing before who waits for it asks for it as well: its connection may be dead.
const stuck = time.Second

// gap gives the first bytes from one on to before another that nobody has asked for.
func (s *wantedSegment) gap(from, end int64) (int64, int64) {
	comes := s.came
	if s.asked-s.came <= partSoon || min(end, s.asked)-s.came <= end-from {
		comes = s.asked
	}
	from = min(max(from, comes), end)
	for _, q := range s.parts {
		if q.off > from {
			return from, min(q.off, end)
		}
		from = min(max(from, q.end()), end)
	}
	return from, end
}

// add adds a part that will come. w.mu is held.
func (w *Wanted) add(s *wantedSegment, off, n int64) *part {
	q := &part{off: off, n: n, at: w.end, done: make(chan struct{})}
	w.end += n
	i, _ := slices.BinarySearchFunc(s.parts, off, func(p *part, off int64) int { return cmp.Compare(p.off, off) })
	s.parts = slices.Insert(s.parts, i, q)
	return q
}

// brought says that a pull has a segment up to there, and has asked for more up to asked. Where it begins anew that may be less than before.
func (w *Wanted) brought(d ocispec.Descriptor, came, asked int64) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.segment(d)
	if err != nil {
		return // who pulls it says so
	}
	s.came, s.asked = came, max(came, asked)
	if s.more != nil {
		close(s.more)
		s.more = nil
	}
	for len(s.parts) > 0 && s.parts[0].there() && s.parts[0].end() <= came {
		q := s.parts[0]
		s.parts = s.parts[1:]
		_ = unix.Fallocate(int(w.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.at, q.n) // where that cannot be, it takes room until the end
	}
}

// request waits until the pull of a segment, which has all before off, may ask for more, up to end. Where some has come otherwise, that is read into buf, and the turn is
// nil.
func (w *Wanted) request(ctx context.Context, l *line, d ocispec.Descriptor, off int64, buf []byte) (t *turn, end int64, ahead []byte, err error) {
	for {
		w.mu.Lock()
		s, err := w.segment(d)
		if err != nil {
			w.mu.Unlock()
			return nil, 0, nil, err
		}
		switch q := s.at(off); {
		case q != nil && q.there():
			defer w.mu.Unlock()
			n, err := w.take(q, off, buf)
			return nil, 0, buf[:n], err
		case q != nil:
			w.mu.Unlock()
			if err := wait(ctx, q.done); err != nil {
				return nil, 0, nil, err
			}
			continue
		}
		w.mu.Unlock()
		if t, err = l.begin(ctx, d.Size-off, rest); err != nil {
			return nil, 0, nil, err
		}
		w.mu.Lock()
		if s.at(off) == nil { // as before
			end = s.next(off, off+t.most)
			unit := int64(partLeast)
			if t.most >= 2*maxPiece {
				unit = maxPiece // which are written quickly
			}
			if aligned := end &^ (unit - 1); end == off+t.most && aligned > off && end < d.Size {
				end = aligned
			}
			t.shorten(end - off)
			s.asked = end
			w.mu.Unlock()
			return t, end, nil, nil
		}
		w.mu.Unlock()
		t.end()
	}
}

// next gives where the first part behind off begins, at most end.
func (s *wantedSegment) next(off, end int64) int64 {
	for _, q := range s.parts {
		if q.off > off {
			return min(q.off, end)
		}
	}
	return end
}
