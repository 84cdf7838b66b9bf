package registry

import (
	"context"
	"sync"
	"time"
)

// line is what goes over the network between a puller and its registry. Of what nobody waits for no more is asked for than comes in a moment, and next to nothing
// while somebody waits for something else: a request cannot overtake those before it.
type line struct {
	streams int64 // how many requests that nobody waits for are under way at most

	mu      sync.Mutex
	room    int64         // bytes that come in a moment, as measured; 0: nothing was; guarded by mu
	latency time.Duration // least time until an answer; 0: there was none; guarded by mu
	waiting int           // requests that somebody waits for; guarded by mu
	calm    time.Time     // nobody is taken to wait from then on; guarded by mu
	under   int64         // requests under way that nobody waits for; guarded by mu
	changed chan struct{} // closed when a request has ended; nil: nobody waits for that; guarded by mu
	given   bool          // the room is given, by a test, and not measured
}

const (
	moment     = 100 * time.Millisecond // or two latencies, where that is more
	calmTime   = 10 * time.Millisecond  // for which somebody is taken to wait for more afterwards
	roomBegin  = 1 << 20                // bytes, before anything was measured
	partLeast  = 64 << 10               // bytes of a request; larger ones are a multiple of it
	waitedPart = 10                     // that part of the room is used while somebody waits
	roomDown   = 4                      // by that part of the difference the room becomes smaller
)

// urgent begins a request that somebody waits for.
func (l *line) urgent() (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting--
		l.calm = time.Now().Add(calmTime)
	}
}

// rest waits until a request may begin that nobody waits for, of so many bytes at most.
func (l *line) rest(ctx context.Context) (most int64, end func(), err error) {
	for {
		l.mu.Lock()
		if most := l.may(); most > 0 {
			l.under++
			l.mu.Unlock()
			return most, l.ended, nil
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(calmTime): // nobody may wait any more
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
}

// may says how many bytes may be asked for; 0: none. l.mu is held.
func (l *line) may() int64 {
	room, streams := l.room, max(l.streams, 1)
	if room == 0 {
		room = roomBegin
	}
	if l.waited() {
		// Two at most: they share the line.
		if room, streams = room/waitedPart, min(streams, 2); room < partLeast {
			return 0
		}
	}
	part := max(room/streams&^(partLeast-1), partLeast)
	if l.under > 0 && (l.under+1)*part > room || l.under >= streams {
		return 0
	}
	return part
}

// waited says whether somebody waits, or did a moment ago. l.mu is held.
func (l *line) waited() bool { return l.waiting > 0 || time.Now().Before(l.calm) }

// ended ends what rest has begun.
func (l *line) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.under--
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// measure says that a request that nobody waits for has brought n bytes, in so much time after an answer that came after latency.
func (l *line) measure(n int64, latency, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.given {
		return
	}
	if l.latency == 0 || latency < l.latency {
		l.latency = latency
	}
	room := int64(float64(n*l.under) * float64(max(moment, 2*l.latency)) / float64(max(took, time.Microsecond)))
	switch {
	case l.room == 0:
		l.room = min(room, 2*roomBegin)
	case room > l.room:
		l.room = min(room, 2*l.room) // what had come before it was looked at seems to come quickly
	case !l.waited(): // else the line is shared
		l.room -= (l.room - room) / roomDown
	}
}

// soon says whether n bytes come so quickly that nobody is in the way of others with them.
func (l *line) soon(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.room == 0 || n <= l.room
}
