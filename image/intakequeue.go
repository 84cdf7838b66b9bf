package image

import (
	"context"
	"slices"
	"sync"
)

// intakeQueue has the pieces that have arrived and are not encoded yet. Each window's come out in their order, and the windows by turns:
// a segment has one digest, which one core makes, so that several must be under way for all cores to have something to do.
type intakeQueue struct {
	side int           // how many windows take turns
	room chan struct{} // one for each piece that is there

	mu      sync.Mutex
	windows []*intakeWindow // that have pieces here, in the order in which these came; guarded by mu
	turn    int             // which of the first is next; guarded by mu
	ended   bool            // guarded by mu
	more    chan struct{}   // closed when something has come; guarded by mu
}

func newIntakeQueue(side, room int) *intakeQueue {
	return &intakeQueue{side: side, room: make(chan struct{}, room), more: make(chan struct{})}
}

// put adds a piece. It gives false where there is no room.
func (q *intakeQueue) put(job *frameJob, w *intakeWindow) bool {
	select {
	case q.room <- struct{}{}:
		q.add(job, w)
		return true
	default:
		return false
	}
}

// wait adds a piece as soon as there is room.
func (q *intakeQueue) wait(ctx context.Context, job *frameJob, w *intakeWindow) error {
	select {
	case q.room <- struct{}{}:
		q.add(job, w)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (q *intakeQueue) add(job *frameJob, w *intakeWindow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.pending = append(w.pending, job); len(w.pending) == 1 {
		q.windows = append(q.windows, w)
	}
	q.wake()
}

// wake tells who waits in take.
func (q *intakeQueue) wake() {
	close(q.more)
	q.more = make(chan struct{})
}

// end says that no more will be added.
func (q *intakeQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.wake()
}

// take waits for a piece; nil: there are no more.
func (q *intakeQueue) take() *frameJob {
	for {
		job, more := q.next()
		if job != nil {
			<-q.room
			return job
		}
		if more == nil {
			return nil
		}
		<-more
	}
}

// next gives a piece, or else what tells that there is one; both are nil at the end.
func (q *intakeQueue) next() (*frameJob, chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.windows) == 0 {
		if q.ended {
			return nil, nil
		}
		return nil, q.more
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
	return job, nil
}
