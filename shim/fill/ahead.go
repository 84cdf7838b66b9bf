package fill

import (
	"context"
	"sync"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/direct"
)

// ahead has pieces of memory fetched while CRIU still restores the process: what it will want as soon as it runs, and where the disk has
// nothing else to do, what is filled in first. They are verified like all that is read. Its methods may be called on nil.
type ahead struct {
	again  bool  // what is on its way may be read by who waits for it: nothing is fetched twice
	most   int64 // bytes that may be held
	beyond int64 // bytes that may be brought into the page cache then

	mu     sync.Mutex
	pieces map[place]*early // guarded by mu
	held   int64            // bytes, with those on their way; guarded by mu
	cached int64            // bytes, likewise; guarded by mu
	over   bool             // nothing more is begun; guarded by mu
}

// place names a piece of a process.
type place struct{ pid, piece int }

// early is a piece that is fetched ahead.
type early struct {
	done chan struct{} // closed when kept is there; nil: nobody has begun. Guarded by the mu of ahead
	left bool          // nobody takes it any more; guarded by the mu of ahead
	kept image.Kept    // without data: it could not be had, and who wants it may try again. Valid when done is closed
}

// wish is a piece that shall be fetched.
type wish struct {
	place
	part image.Part
}

// parts reads the pieces of a snapshot.
type parts interface {
	// There tells whether a part is better read by who wants it.
	There(image.Part) bool
	Keep(image.Part) (image.Kept, error)
	// Cache brings a part into the page cache.
	Cache(image.Part) error
}

func newAhead(wishes []wish, most, beyond int64) *ahead {
	a := &ahead{most: most, beyond: beyond, pieces: make(map[place]*early, len(wishes))}
	for _, w := range wishes {
		a.pieces[w.place] = &early{}
	}
	return a
}

// begin has so many goroutines fetch wishes in their order. It never fails: what does not come is asked for again by who wants it. ended
// begins with nothing more and waits for what is on its way.
func (a *ahead) begin(readers int, wishes []wish, from func() (parts, func(), error), arrived func()) (ended func()) {
	queue := make(chan wish, len(wishes))
	for _, w := range wishes {
		queue <- w
	}
	close(queue)
	var reading sync.WaitGroup
	for range min(readers, len(wishes)) {
		reading.Go(func() {
			p, done, err := from()
			if err != nil {
				return // others do it, or nobody
			}
			defer done()
			a.fetch(queue, p, arrived)
		})
	}
	return func() {
		a.stop()
		reading.Wait()
	}
}

// fetch fetches wishes until there are none, there is no more room, or it is over; several goroutines may share the channel. What is there
// is left alone.
func (a *ahead) fetch(wishes <-chan wish, from parts, arrived func()) {
	for w := range wishes {
		switch e, what := a.claim(w.place, from.There(w.part)); what {
		case enough:
			return
		case cache:
			_ = from.Cache(w.part) // who wants it hears what is wrong
		case hold:
			kept, err := from.Keep(w.part)
			if err != nil {
				kept = image.Kept{} // likewise
			}
			a.have(e, kept)
			arrived()
		}
	}
}

// What comes of a wish.
type outcome int

const (
	leave outcome = iota // alone
	hold
	cache
	enough // of all
)

// claim begins with a piece, which is to be noted where it is held.
func (a *ahead) claim(at place, there bool) (e *early, what outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e = a.pieces[at]
	switch {
	case a.over:
		return nil, enough
	case e == nil || there:
		delete(a.pieces, at)
		return nil, leave
	case a.held+direct.Piece <= a.most:
		a.held += direct.Piece // at most
		e.done = make(chan struct{})
		return e, hold
	case a.cached+direct.Piece <= a.beyond:
		a.cached += direct.Piece
		delete(a.pieces, at)
		return nil, cache
	}
	a.over = true
	return nil, enough
}

// have notes what has come of a piece.
func (a *ahead) have(e *early, kept image.Kept) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.left {
		kept.Release()
		kept = image.Kept{}
	}
	a.held += kept.Size() - direct.Piece
	e.kept = kept
	close(e.done)
}

// stop begins with nothing more: who runs says itself what it wants.
func (a *ahead) stop() {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
}

// there tells whether a piece has been fetched.
func (a *ahead) there(at place) bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.pieces[at]
	return e != nil && e.done != nil && e.there() && e.kept.Data != nil
}

// there tells whether a piece that was begun with has come, or cannot be had.
func (e *early) there() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// take gives a piece once, and waits for one that is on its way unless that may be read again. Without data it must be read, otherwise it is the caller's to release.
func (a *ahead) take(ctx context.Context, at place) (image.Kept, error) {
	if a == nil {
		return image.Kept{}, nil
	}
	a.mu.Lock()
	e := a.pieces[at]
	delete(a.pieces, at)
	left := e != nil && e.done != nil && a.again && !e.there()
	if left {
		e.left = true
	}
	a.mu.Unlock()
	if e == nil || e.done == nil || left {
		return image.Kept{}, nil
	}
	select {
	case <-e.done:
		return e.kept, nil
	case <-ctx.Done():
		return image.Kept{}, context.Cause(ctx)
	}
}
