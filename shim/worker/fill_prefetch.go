package worker

import (
	"bytes"
	"sync"

	"github.com/cryo-project/cryo/image"
)

// prefetch has pieces of memory fetched from the registry while CRIU still restores the process: what it will want as soon as it runs. They are
// verified like all that is read. Its methods may be called on nil.
type prefetch struct {
	mu      sync.Mutex
	pieces  map[place][]byte // that have come; guarded by mu
	taken   map[place]bool   // by a process that waits for them; guarded by mu
	stopped bool             // nothing more is begun; guarded by mu
}

// urgent is how many pages are fetched side by side for which a process waits: each takes as long as the network does.
const urgent = 4

// fetchAhead fetches what processes will want as soon as they run, in the background until ended ends it.
func (s *source) fetchAhead(arrived func()) (ended func(), err error) {
	needed, err := firstNeeded(s.images, s.pages)
	if err != nil {
		return nil, err
	}
	s.prefetch = &prefetch{pieces: make(map[place][]byte), taken: make(map[place]bool)}
	open := func() (parts, error) {
		r, err := s.pages.Reader()
		if err != nil {
			return nil, err // not r, which would be an interface that is not nil
		}
		r.Ahead = true
		return r, nil
	}
	return s.prefetch.begin(aheadWorkers, needed, s.pages.There, open, arrived), nil
}

// place names a piece of a process.
type place struct{ pid, piece int }

// neededPiece is a piece that shall be fetched.
type neededPiece struct {
	place
	part image.Part
}

// parts reads the pieces of a snapshot, for one goroutine; see [image.PagesReader].
type parts interface {
	Read(image.Part) ([]byte, error)
	Close()
}

// begin has so many goroutines fetch what is needed in its order, but for pieces that are there. It never fails: what does not come is asked for again by the process that wants
// it. arrived is called with each that has come. ended begins with nothing more and waits for what is on its way.
func (p *prefetch) begin(readers int, needed []neededPiece, there func(image.Part) bool, open func() (parts, error), arrived func()) (ended func()) {
	queue := make(chan neededPiece, len(needed))
	for _, n := range needed {
		queue <- n
	}
	close(queue)
	var reading sync.WaitGroup
	for range min(readers, len(needed)) {
		reading.Go(func() {
			from, err := open()
			if err != nil {
				return // others do it, or none
			}
			defer from.Close()
			for w := range queue {
				if !p.wanted(w.place) || there(w.part) {
					continue
				}
				if data, err := from.Read(w.part); err == nil { // else the process that wants it hears what is wrong
					p.have(w.place, bytes.Clone(data))
					arrived()
				}
			}
		})
	}
	return func() {
		p.stop()
		reading.Wait()
	}
}

// wanted reports whether a piece is still to be fetched.
func (p *prefetch) wanted(at place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.stopped && !p.taken[at]
}

// have notes that a piece has come. One that was taken meanwhile has been read by its taker.
func (p *prefetch) have(at place, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.taken[at] {
		p.pieces[at] = data
	}
}

// stop begins with nothing more: a running process asks for what it wants.
func (p *prefetch) stop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
}

// there reports whether a piece has been fetched.
func (p *prefetch) there(at place) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pieces[at] != nil
}

// take returns a piece once. nil: it must be read, which fetches nothing twice that is on its way.
func (p *prefetch) take(at place) []byte {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	data := p.pieces[at]
	delete(p.pieces, at)
	p.taken[at] = true
	return data
}
