package worker

import (
	"slices"
	"sync"

	"github.com/cryo-project/cryo/image"
)

// part is what fits into a slot of the ring, of a piece by its number.
type part struct {
	piece  int
	offset int64
	needs  image.DevicePart
}

// queue has the parts of all pieces that no worker has begun with: those that can be read at once, and those that segments are still awaited for.
type queue struct {
	pulling bool // what can be read may still have to be fetched: the store may have no room for it

	mu      sync.Mutex
	change  *sync.Cond // of what follows
	here    []part     // in the order in which they came; guarded by mu
	awaited []part     // guarded by mu
	over    bool       // no more is wanted; guarded by mu
}

// newQueue cuts pieces of these sizes into parts of at most so many bytes. needs says what each needs; nil: nothing.
func newQueue(sizes []int64, length int64, needs func(piece int, offset, length int64) image.DevicePart) *queue {
	q := &queue{}
	q.change = sync.NewCond(&q.mu)
	for i, size := range sizes {
		for at := int64(0); at < size; at += length {
			p := part{piece: i, offset: at}
			if needs != nil {
				p.needs = needs(i, at, min(length, size-at))
			}
			q.awaited = append(q.awaited, p)
		}
	}
	q.look()
	return q
}

// look looks what has come since.
func (q *queue) look() {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := len(q.here)
	q.awaited = slices.DeleteFunc(q.awaited, func(p part) bool {
		there := p.needs.There()
		if there {
			q.here = append(q.here, p)
		}
		return there
	})
	if len(q.here) > before {
		q.change.Broadcast()
	}
}

// next returns a part that can be read, and waits for one; false: there are no more, or no more is wanted.
func (q *queue) next() (part, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.over && len(q.here) == 0 && len(q.awaited) > 0 {
		q.change.Wait()
	}
	if q.over || len(q.here) == 0 {
		return part{}, false
	}
	p := q.here[0]
	q.here = q.here[1:]
	return p, true
}

// awaits reports whether segments are awaited still, or may be.
func (q *queue) awaits() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pulling || len(q.awaited) > 0
}

// stop keeps workers from beginning with more.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
	q.change.Broadcast()
}
