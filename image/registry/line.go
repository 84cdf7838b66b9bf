package registry

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"
)

// line is what goes over the network between a puller and its registry. What somebody waits for goes first, and of the rest no more is asked for than comes in a
// moment: what was asked for cannot be overtaken.
type line struct {
	streams int64 // how many ask for the rest side by side

	mu      sync.Mutex
	turns   [kinds][]*turn // those that wait, oldest first; guarded by mu
	asked   [kinds]int64   // bytes that were asked for and have not come; guarded by mu
	rate    float64        // bytes a second, as measured; guarded by mu
	given   bool           // the rate is given, by a test, and not measured
	latency time.Duration  // least time until an answer began; 0: none has yet; guarded by mu
	since   time.Time      // measuring goes on since then; zero while the line is idle; guarded by mu
	took    time.Duration  // for which what is being measured had come before; guarded by mu
	came    int64          // bytes of what is being measured; guarded by mu
	held    bool           // meanwhile, less was asked for than the line may bring; guarded by mu
	calm    time.Time      // nobody is taken to wait from then on; guarded by mu
}

// What may be asked for at once. Most of it is the time that it takes to come, whatever the line; the rest is for lines on which an answer takes longer than that.
const (
	lineTime   = 100 * time.Millisecond
	lineWaited = 10 * time.Millisecond // the same for the rest while somebody waits, and for how long somebody is taken to wait for more afterwards
	lineBegin  = 10 << 20              // bytes a second, before anything was measured
	lineQuick  = 32 << 20              // likewise: from here on requests cost more than waiting for what is under way
	quickTime  = time.Second           // lineTime on such a line
	partLeast  = 64 << 10              // bytes; parts end at multiples of it
)

// How the rate is measured: so long or so many bytes at a time, quickly upwards.
const (
	rateTime  = 50 * time.Millisecond
	rateBytes = 1 << 20
	rateLeast = 5 * time.Millisecond // when nothing more comes
	rateDown  = 4
)

// kind of a request.
type kind int

const (
	urgent kind = iota // somebody waits for the bytes
	rest               // nobody does
	free               // it asks for a whole blob, and bounds nobody
	kinds
)

// turn is a request's. Until end is called it counts as being under way.
type turn struct {
	line  *line
	kind  kind
	most  int64 // bytes that may be asked for
	left  int64 // of them, those that have not come; guarded by the line's mu
	sent  time.Time
	ready chan struct{} // closed when it may begin
}

// begin waits until so many urgent bytes may be asked for, or some of so many of the rest: most says how many.
func (l *line) begin(ctx context.Context, n int64, k kind) (*turn, error) {
	t := &turn{line: l, kind: k, most: n, ready: make(chan struct{})}
	l.mu.Lock()
	l.turns[t.kind] = append(l.turns[t.kind], t)
	l.next()
	l.mu.Unlock()
	select {
	case <-t.ready:
		t.sent = time.Now()
		return t, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.turns[t.kind], t); i >= 0 {
		l.turns[t.kind] = slices.Delete(l.turns[t.kind], i, i+1)
	}
	l.give(t, t.left)
	return nil, context.Cause(ctx)
}

// join gives a turn for a whole blob at once.
func (l *line) join(n int64) *turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[free] += n
	return &turn{line: l, kind: free, most: n, left: n, sent: time.Now()}
}

// soon says whether so many bytes come so quickly that nobody is in the way of others with them.
func (l *line) soon(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate == 0 || float64(n) <= l.rate*lineTime.Seconds()
}

// next lets those begin that may. l.mu is held.
func (l *line) next() {
	for _, k := range []kind{urgent, rest} {
		for len(l.turns[k]) > 0 && l.may(l.turns[k][0]) {
			t := l.turns[k][0]
			l.turns[k] = l.turns[k][1:]
			t.left = t.most
			l.asked[k] += t.left
			close(t.ready)
		}
	}
}

// may says whether a turn may begin, with how many bytes. One may in any case where nothing else is under way. l.mu is held.
func (l *line) may(t *turn) bool {
	rate := l.rate
	if rate == 0 {
		rate = lineBegin
	}
	bytes := func(d time.Duration) int64 { return int64(rate * d.Seconds()) }
	most := lineTime
	if rate >= lineQuick {
		most = quickTime
	}
	room := bytes(max(most, 2*l.latency))
	if t.kind == urgent {
		return l.asked[urgent] == 0 || l.asked[urgent]+t.most <= room || t.most <= partLeast
	}
	streams := max(l.streams, 1)
	if l.waited() {
		// Two at most: they share the line.
		room, streams = bytes(max(lineWaited, l.latency)), min(streams, 2)
		l.held = true
		if room < partLeast {
			return false
		}
	}
	part := max(room/streams, partLeast)
	if l.asked[rest] > 0 && l.asked[rest]+part > room {
		return false
	}
	t.most = min(t.most, part)
	return true
}

// waited says whether somebody waits for bytes, or did a moment ago. l.mu is held.
func (l *line) waited() bool {
	return l.asked[urgent] > 0 || len(l.turns[urgent]) > 0 || time.Now().Before(l.calm)
}

// answered says that an answer has begun.
func (t *turn) answered() {
	l := t.line
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if took := now.Sub(t.sent); l.latency == 0 || took < l.latency {
		l.latency = took
	}
	if l.since.IsZero() {
		l.since = now
	}
}

// moved says that bytes have come.
func (t *turn) moved(n int64) {
	l := t.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.since.IsZero() {
		l.came += n
	}
	l.give(t, min(n, t.left))
}

// end is called when nothing more comes.
func (t *turn) end() {
	l := t.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.kind == urgent {
		l.calm = time.Now().Add(lineWaited)
		time.AfterFunc(lineWaited, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.next()
		})
	}
	l.give(t, t.left)
}

// give takes bytes as no longer asked for. l.mu is held.
func (l *line) give(t *turn, n int64) {
	t.left -= n
	l.asked[t.kind] -= n
	l.measure()
	l.next()
}

// measure measures what has come since the line was measured last, without the times when it was idle. What comes in less than is measured counts with what comes next: a line
// that was slow once would never be found quick where little is asked for at once. l.mu is held.
func (l *line) measure() {
	if l.since.IsZero() || l.given {
		return
	}
	idle := l.asked[urgent]+l.asked[rest]+l.asked[free] == 0
	now := time.Now()
	took := l.took + now.Sub(l.since)
	if took > 0 && (took >= rateTime || l.came >= rateBytes || idle && took >= rateLeast) {
		switch rate := float64(l.came) / took.Seconds(); {
		case l.rate == 0:
			l.rate = rate
		case rate > l.rate:
			l.rate = min(rate, 2*l.rate) // what had come before it was looked at seems to come quickly
		case !l.held:
			l.rate -= (l.rate - rate) / rateDown
		}
		took, l.came, l.held = 0, 0, false
		l.took, l.since = 0, now
	}
	if idle {
		l.took, l.since = took, time.Time{}
	}
}

// on gives a body whose bytes are a turn's.
func (t *turn) on(body io.Reader) io.Reader { return &turnReader{body, t} }

type turnReader struct {
	io.Reader
	turn *turn
}

func (r *turnReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.turn.moved(int64(n))
	return n, err
}

// shorten has less be asked for than the turn allows.
func (t *turn) shorten(n int64) {
	l := t.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < t.left {
		t.most = n
		l.give(t, t.left-n)
	}
}
