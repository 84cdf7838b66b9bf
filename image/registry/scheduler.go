package registry

import (
	"context"
	"sync"
	"time"
)

// scheduler limits the background requests of a puller to what comes in about 100 ms, and to a tenth of that while a reader waits for something else: a request cannot overtake those
// before it.
type scheduler struct {
	streams int64 // how many requests that no reader waits for are under way at most

	mu      sync.Mutex
	room    int64         // bytes that come in a moment, as measured; 0: nothing was; guarded by mu
	latency time.Duration // least time until an answer; 0: there was none; guarded by mu
	waiting int           // requests that a reader waits for; guarded by mu
	calm    time.Time     // no reader is taken to wait from then on; guarded by mu
	under   int64         // requests under way that no reader waits for; guarded by mu
	begun   time.Time     // the first of them; guarded by mu
	changed chan struct{} // closed when a request has ended; nil: no reader waits for that; guarded by mu
	given   bool          // the room is given, by a test, and not measured
}

const (
	moment     = 100 * time.Millisecond // or two latencies, where that is more
	calmTime   = 10 * time.Millisecond  // for which a reader is taken to wait for more afterwards
	roomBegin  = 1 << 20                // bytes; twice as much is the most that one request is taken to have measured
	partLeast  = 64 << 10               // bytes of a request; larger ones are a multiple of it
	waitedPart = 10                     // that part of the room is used while a reader waits
	roomDown   = 4                      // by that part of the difference the room becomes smaller
	firstTime  = time.Second            // a part of the least size takes less, on lines of 64 KiB/s and more
)

// urgent begins a request that a reader waits for.
func (l *scheduler) urgent() (end func()) {
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

// rest waits until a request may begin that no reader waits for, of so many bytes at most.
func (l *scheduler) rest(ctx context.Context) (most int64, end func(), err error) {
	for {
		l.mu.Lock()
		if most := l.may(); most > 0 {
			if l.under == 0 {
				l.begun = time.Now()
			}
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
		case <-time.After(calmTime): // no reader may wait any more
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
}

// may returns how many bytes may be asked for; 0: none. Before anything was measured one request is under way, of the least size: on a line of 100 kB/s, a MiB would be in the way of others for
// ten seconds. If it does not come, it is no longer waited for: a registry that holds one blob back holds back no other. l.mu is held.
func (l *scheduler) may() int64 {
	room, streams := l.room, max(l.streams, 1)
	if room == 0 {
		if room = partLeast; l.under == 0 || time.Since(l.begun) < firstTime {
			streams = 1
		}
		room *= streams
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

// waited reports whether a reader waits, or did a moment ago. l.mu is held.
func (l *scheduler) waited() bool { return l.waiting > 0 || time.Now().Before(l.calm) }

// ended ends what rest has begun.
func (l *scheduler) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.under--
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// measure says that a request that no reader waits for has brought n bytes, in so much time after an answer that came after latency.
func (l *scheduler) measure(n int64, latency, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.given {
		return
	}
	if l.latency == 0 || latency < l.latency {
		l.latency = latency
	}
	room := int64(float64(n*max(l.under, 1)) * float64(max(moment, 2*l.latency)) / float64(max(took, time.Microsecond)))
	switch {
	case l.room == 0:
		l.room = min(room, 2*roomBegin)
	case room > l.room:
		l.room = min(room, 2*l.room) // what had come before it was looked at seems to come quickly
	case !l.waited(): // else the line is shared
		l.room -= (l.room - room) / roomDown
	}
}

// measured reports whether it is known how much comes in a moment.
func (l *scheduler) measured() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.room > 0
}

// soon reports whether n bytes come so quickly that others need not wait with them.
func (l *scheduler) soon(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return n <= max(l.room, partLeast)
}
