package image

import (
	"bytes"
	"context"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/index"
)

// nowhere is the place of pages of zeros.
const nowhere = -1

// keptRun is pages that follow each other in memory and in one piece of a [roundStore], or that are all zeros.
type keptRun struct {
	addr  uint64
	count int64
	place int64 // number of the first page: of its piece, times the pages of one, and in it
	lazy  bool  // CRIU has said so of them
}

func (k keptRun) end(pageSize uint64) uint64 { return k.addr + uint64(k.count)*pageSize }

// part gives what a run has of count pages from addr on, which is in it.
func (k keptRun) part(addr, count, pageSize uint64) keptRun {
	skip := int64((addr - k.addr) / pageSize)
	p := keptRun{addr: addr, count: min(k.count-skip, int64(count)), place: k.place, lazy: k.lazy}
	if p.place != nowhere {
		p.place += skip
	}
	return p
}

// roundStore keeps pages one behind the other, in pieces of the length of a frame. Those of rounds go to the disk; those of the dump stay in
// memory as long as there is some. A piece has pages of one pagemap, so that each round's are read back in their order.
type roundStore struct {
	pageSize int64
	spill    *spill
	memory   *slots // for pieces of the dump
	aside    *slots // for pieces on their way to the disk
	work     *errgroup.Group
	ctx      context.Context // ends when one could not be written
	round    int
	last     bool // it is the dump
	pieces   []roundPiece
	filling  []byte // of the last piece; nil: it is complete
	home     *slots // of filling
	used     int64  // bytes of filling

	loaded map[int]*loadedPiece // by round
	closed bool
}

// roundPiece is a piece: in memory, or in the spill.
type roundPiece struct {
	bytes []byte // nil: it is not in memory
	at    int64
	size  int64
	round int
}

// loadedPiece is the piece of a round that is read back.
type loadedPiece struct {
	number int64
	buf    []byte
	bytes  []byte
}

// newRoundStore keeps files in dir, through the page cache if they shall be cached: see newSpill.
func newRoundStore(dir string, pageSize int64, cached bool) (*roundStore, error) {
	s := &roundStore{pageSize: pageSize, loaded: make(map[int]*loadedPiece)}
	var err error
	if s.spill, err = newSpill(dir, cached); err != nil {
		return nil, err
	}
	if s.memory, err = newSlots(intakeSlots); err != nil {
		s.spill.close()
		return nil, err
	}
	if s.aside, err = newSlots(intakeAside); err != nil {
		s.spill.close()
		s.memory.release()
		return nil, err
	}
	s.work, s.ctx = errgroup.WithContext(context.Background())
	return s, nil
}

// perPiece is how many pages a piece has room for.
func (s *roundStore) perPiece() int64 { return index.MaxFrame / s.pageSize }

// space gives room for at least a page, in the piece that is being filled.
func (s *roundStore) space() ([]byte, error) {
	if s.filling != nil && s.used == index.MaxFrame {
		if err := s.cut(); err != nil {
			return nil, err
		}
	}
	if s.filling == nil {
		if s.last {
			s.filling, s.home = s.memory.try(), s.memory
		}
		if s.filling == nil {
			slot, err := s.aside.take(s.ctx)
			if err != nil {
				return nil, s.work.Wait()
			}
			s.filling, s.home = slot, s.aside
		}
		s.used = 0
		s.pieces = append(s.pieces, roundPiece{round: s.round})
	}
	return s.filling[s.used:], nil
}

// place numbers the page that lies so many bytes behind the beginning of the space.
func (s *roundStore) place(off int64) int64 {
	return int64(len(s.pieces)-1)*s.perPiece() + (s.used+off)/s.pageSize
}

// use keeps so many bytes of the space.
func (s *roundStore) use(n int64) { s.used += n }

// cut ends a piece.
func (s *roundStore) cut() error {
	slot, home, number := s.filling, s.home, len(s.pieces)-1
	if slot == nil {
		return nil
	}
	s.filling = nil
	p := &s.pieces[number]
	p.size = s.used
	switch {
	case s.used == 0:
		home.put(slot)
		return nil
	case home == s.memory:
		p.bytes = slot[:s.used]
		return nil
	}
	n := s.used
	at, err := s.spill.reserve(n)
	if err != nil {
		s.aside.put(slot)
		return err
	}
	p.at = at
	s.work.Go(func() error {
		defer s.aside.put(slot)
		return s.spill.fill(slot[:n], at)
	})
	if s.ctx.Err() != nil {
		return s.work.Wait()
	}
	return nil
}

// wait waits until all pieces are written.
func (s *roundStore) wait() error {
	err := s.work.Wait()
	s.work, s.ctx = errgroup.WithContext(context.Background())
	return err
}

// retain drops the pieces that no run is in.
func (s *roundStore) retain(maps []*roundMap) {
	live := make([]bool, len(s.pieces))
	for _, m := range maps {
		for _, run := range m.runs {
			if run.place != nowhere {
				live[run.place/s.perPiece()] = true
			}
		}
	}
	for i := range s.pieces {
		if p := &s.pieces[i]; !live[i] && p.size > 0 {
			if p.bytes == nil {
				s.spill.drop(p.at, p.size)
			}
			*p = roundPiece{round: p.round}
		}
	}
}

// join appends a run, joined to the one before where it continues it within a piece.
func (s *roundStore) join(runs []keptRun, k keptRun) []keptRun {
	if n := len(runs); n > 0 {
		last := &runs[n-1]
		follows := last.place == nowhere && k.place == nowhere ||
			last.place != nowhere && last.place+last.count == k.place && k.place%s.perPiece() != 0
		if follows && last.lazy == k.lazy && last.end(uint64(s.pageSize)) == k.addr {
			last.count += k.count
			return runs
		}
	}
	return append(runs, k)
}

// reader reads the pages of a run. Runs must be read in the order of memory, those of one pagemap after those of another: a piece is read
// from the disk once, and gone there then.
func (s *roundStore) reader(k keptRun) io.Reader {
	if k.place == nowhere {
		return zeros{}
	}
	return &pieceReader{store: s, run: k}
}

// zeros are as many as one wants.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// pieceReader loads a piece when it is read.
type pieceReader struct {
	store *roundStore
	run   keptRun
	rest  *bytes.Reader // nil: not loaded
}

func (r *pieceReader) Read(b []byte) (int, error) {
	if r.rest == nil {
		s := r.store
		number, first := r.run.place/s.perPiece(), r.run.place%s.perPiece()
		piece, err := s.load(number)
		if err != nil {
			return 0, err
		}
		r.rest = bytes.NewReader(piece[first*s.pageSize : (first+r.run.count)*s.pageSize])
	}
	return r.rest.Read(b)
}

// load gives the bytes of a piece, until the next of the same round is loaded.
func (s *roundStore) load(number int64) ([]byte, error) {
	p := &s.pieces[number]
	if p.bytes != nil {
		return p.bytes, nil
	}
	l := s.loaded[p.round]
	if l == nil {
		l = &loadedPiece{number: -1, buf: direct.Alloc(index.MaxFrame)}
		s.loaded[p.round] = l
	}
	if l.number != number {
		l.number, l.bytes = number, l.buf[:p.size]
		if err := s.spill.takePages(l.bytes, p.at); err != nil {
			l.number = -1
			return nil, err
		}
	}
	return l.bytes, nil
}

func (s *roundStore) close() {
	if s.closed {
		return
	}
	s.closed = true
	_ = s.work.Wait() // it was told, or nobody wants to know any more
	s.spill.close()
	s.memory.release()
	s.aside.release()
}
