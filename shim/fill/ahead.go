package fill

import (
	"bytes"
	"context"
	"sync"

	"github.com/cryo-project/cryo/image"
)

// ahead has pieces of memory that a process will want as soon as it runs, fetched while CRIU still restores it: each would cost it the
// way to the registry and back, one after the other. They are verified like all that is read. Its methods may be called on nil.
type ahead struct {
	mu     sync.Mutex
	pieces map[place]*early // guarded by mu
	over   bool             // nothing more is begun; guarded by mu
}

// place names a piece of a process.
type place struct{ pid, piece int }

// early is a piece that is fetched ahead.
type early struct {
	done chan struct{} // closed when data is there; nil: nobody has begun. Guarded by the mu of ahead
	data []byte        // nil: it could not be had, and who wants it may try again. Valid when done is closed
}

// wish is a piece that shall be fetched.
type wish struct {
	place
	part image.Part
}

// parts reads the pieces of a snapshot.
type parts interface {
	There(image.Part) bool
	Read(image.Part) ([]byte, error)
}

func newAhead(wishes []wish) *ahead {
	a := &ahead{pieces: make(map[place]*early, len(wishes))}
	for _, w := range wishes {
		a.pieces[w.place] = &early{}
	}
	return a
}

// fetch fetches wishes in their order until there are none, or it is over; several goroutines may share the channel. What is there is left
// alone.
func (a *ahead) fetch(wishes <-chan wish, from parts, arrived func()) {
	for w := range wishes {
		a.mu.Lock()
		e := a.pieces[w.place]
		if e == nil || a.over || from.There(w.part) {
			delete(a.pieces, w.place)
			a.mu.Unlock()
			continue
		}
		e.done = make(chan struct{})
		a.mu.Unlock()
		if data, err := from.Read(w.part); err == nil { // else who wants it hears why
			e.data = bytes.Clone(data)
		}
		close(e.done)
		arrived()
	}
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
	if e == nil || e.done == nil {
		return false
	}
	select {
	case <-e.done:
		return e.data != nil
	default:
		return false
	}
}

// take gives a piece once, and waits for one that is on its way. nil: it must be read.
func (a *ahead) take(ctx context.Context, at place) ([]byte, error) {
	if a == nil {
		return nil, nil
	}
	a.mu.Lock()
	e := a.pieces[at]
	delete(a.pieces, at)
	a.mu.Unlock()
	if e == nil || e.done == nil {
		return nil, nil
	}
	select {
	case <-e.done:
		return e.data, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
