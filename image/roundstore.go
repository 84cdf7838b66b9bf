package image

import (
	"cmp"
	"context"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/index"
)

// roundSlots is how many pieces are filled or on their way to the disk at once.
const roundSlots = 160

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

// roundStore keeps pages one behind the other, in pieces of the length of a frame, which are written to the disk while more come.
type roundStore struct {
	pageSize int64
	spill    *spill
	slots    *slots // for pieces on their way to the disk
	work     *errgroup.Group
	ctx      context.Context // ends when one could not be written
	pieces   []roundPiece
	filling  []byte // of the last piece; nil: it is complete
	closed   bool
}

// roundPiece is a piece in the spill.
type roundPiece struct{ at, size int64 }

// newRoundStore keeps files in dir, through the page cache if they shall be cached: see newSpill.
func newRoundStore(dir string, pageSize int64, cached bool) (*roundStore, error) {
	s := &roundStore{pageSize: pageSize}
	var err error
	if s.spill, err = newSpill(dir, cached); err != nil {
		return nil, err
	}
	if s.slots, err = newSlots(roundSlots); err != nil {
		s.spill.close()
		return nil, err
	}
	s.work, s.ctx = errgroup.WithContext(context.Background())
	return s, nil
}

// perPiece is how many pages a piece has room for.
func (s *roundStore) perPiece() int64 { return index.MaxFrame / s.pageSize }

// space gives room for at least a page, in the piece that is being filled.
func (s *roundStore) space() ([]byte, error) {
	if s.filling != nil && s.last().size == index.MaxFrame {
		if err := s.cut(); err != nil {
			return nil, err
		}
	}
	if s.filling == nil {
		slot, err := s.slots.take(s.ctx)
		if err != nil {
			return nil, s.work.Wait()
		}
		s.filling = slot
		s.pieces = append(s.pieces, roundPiece{})
	}
	return s.filling[s.last().size:], nil
}

func (s *roundStore) last() *roundPiece { return &s.pieces[len(s.pieces)-1] }

// place numbers the page that lies so many bytes behind the beginning of the space.
func (s *roundStore) place(off int64) int64 {
	return int64(len(s.pieces)-1)*s.perPiece() + (s.last().size+off)/s.pageSize
}

// use keeps so many bytes of the space.
func (s *roundStore) use(n int64) { s.last().size += n }

// cut ends a piece.
func (s *roundStore) cut() (err error) {
	slot := s.filling
	if slot == nil {
		return nil
	}
	s.filling = nil
	n := s.last().size
	at, err := s.spill.reserve(n)
	if err != nil {
		s.slots.put(slot)
		return err
	}
	s.last().at = at
	s.work.Go(func() error {
		defer s.slots.put(slot)
		return s.spill.fill(slot[:n], at)
	})
	return nil
}

// wait waits until all pieces are written.
func (s *roundStore) wait() error {
	err := cmp.Or(s.cut(), s.work.Wait())
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
			s.spill.drop(p.at, p.size)
			*p = roundPiece{}
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

// reader reads the pages of a run, when all are written.
func (s *roundStore) reader(k keptRun) io.Reader {
	if k.place == nowhere {
		return zeros{}
	}
	piece := s.pieces[k.place/s.perPiece()]
	return io.NewSectionReader(s.spill, piece.at+k.place%s.perPiece()*s.pageSize, k.count*s.pageSize)
}

// zeros are as many as one wants.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func (s *roundStore) close() {
	if s.closed {
		return
	}
	s.closed = true
	_ = s.work.Wait() // it was told, or nobody wants to know any more
	s.spill.close()
	s.slots.release()
}
