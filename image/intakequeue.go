package image

import (
	"slices"
	"sync"
)

// intakeQueue has the pieces that have arrived and are not encoded yet. Each window's come out in their order, and the windows by turns:
// a segment has one digest, which one core makes, so that several must be under way for all cores to have something to do.
type intakeQueue struct {
	side int // how many windows take turns

	mu      sync.Mutex
	more    *sync.Cond      // something has come, or nothing will any more
	windows []*intakeWindow // that have pieces here, in the order in which these came; guarded by mu
	turn    int             // which of the first is next; guarded by mu
	ended   bool            // guarded by mu
}

func newIntakeQueue(side int) *intakeQueue {
	q := &intakeQueue{side: side}
	q.more = sync.NewCond(&q.mu)
	return q
}

// put adds a piece.
func (q *intakeQueue) put(job *frameJob, w *intakeWindow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.pending = append(w.pending, job); len(w.pending) == 1 {
		q.windows = append(q.windows, w)
	}
	q.more.Broadcast()
}

// end says that no more will be added.
func (q *intakeQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.more.Broadcast()
}

// take waits for a piece; nil: there are no more.
func (q *intakeQueue) take() *frameJob {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.windows) == 0 {
		if q.ended {
			return nil
		}
		q.more.Wait()
	}
	q.turn %= min(q.side, len(q.windows))
	w := q.windows[q.turn]
	job := w.pending[0]
	if w.pending = w.pending[1:]; len(w.pending) == 0 {
		w.pending = nil
		q.windows = slices.Delete(q.windows, q.turn, q.turn+1)
	} else {
		q.turn++
	}
	return job
}
