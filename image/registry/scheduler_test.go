package registry

import (
	"testing"
	"time"
)

// parts makes requests one after the other, each of which takes as long as take says, and gives what the last asked for.
func parts(t *testing.T, l *scheduler, n int, take func(n int64) (latency, took time.Duration)) (last int64) {
	t.Helper()
	for range n {
		most, end, err := l.rest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		latency, took := take(most)
		l.measure(most, latency, took)
		end()
		last = most
	}
	return last
}

// TestLineRecovers has the first bytes come late, as from a disk, and all others at 1 GB/s after a millisecond: parts become large.
func TestLineRecovers(t *testing.T) {
	l := &scheduler{streams: 4}
	parts(t, l, 1, func(int64) (time.Duration, time.Duration) { return time.Millisecond, 10 * time.Second })
	if most := parts(t, l, 1, func(int64) (time.Duration, time.Duration) { return time.Millisecond, 10 * time.Second }); most != partLeast {
		t.Errorf("on a slow line, parts of %d bytes are asked for", most)
	}
	last := parts(t, l, 50, func(n int64) (time.Duration, time.Duration) { return time.Millisecond, time.Duration(n) })
	if last < 8<<20 {
		t.Errorf("at 1 GB/s, parts of %d bytes are asked for", last)
	}
}

// TestLineSlow has parts come at 2 MB/s, with latencies of 50 ms: no more is asked for than comes in 100 ms.
func TestLineSlow(t *testing.T) {
	l := &scheduler{streams: 1}
	at := func(n int64) (time.Duration, time.Duration) {
		return 50 * time.Millisecond, time.Duration(n) * time.Second / 2e6
	}
	parts(t, l, 10, at)
	if most := parts(t, l, 1, at); most > 200<<10 || most < 128<<10 {
		t.Errorf("%d bytes are asked for", most)
	}
	if l.soon(400<<10) || !l.soon(64<<10) {
		t.Error("it is taken for quicker or slower than it is")
	}
	end := l.urgent()
	if l.may() != 0 {
		t.Error("something is asked for while somebody waits")
	}
	end()
	if _, ended, err := l.rest(t.Context()); err != nil {
		t.Error(err)
	} else {
		ended()
	}
}

// TestLineStalls has the first request bring nothing: after a second others are made, of the least size, as many as there may be.
func TestLineStalls(t *testing.T) {
	l := &scheduler{streams: 3}
	begin := func() {
		t.Helper()
		if most, _, err := l.rest(t.Context()); err != nil || most != partLeast {
			t.Fatal(most, err)
		}
	}
	begin()
	if most := l.may(); most != 0 {
		t.Errorf("%d bytes may be asked for beside the first", most)
	}
	l.begun = l.begun.Add(-firstTime)
	begin()
	begin()
	if most := l.may(); most != 0 {
		t.Errorf("%d bytes may be asked for beside three", most)
	}
}

// TestLineBegins has nothing measured: one least part is asked for, and what is large does not come soon. After that a quick line is known to be quick.
func TestLineBegins(t *testing.T) {
	l := &scheduler{streams: 4}
	if l.soon(partLeast+1) || !l.soon(partLeast) {
		t.Error("it is taken for quicker or slower than a line may be")
	}
	most, end, err := l.rest(t.Context())
	if err != nil || most != partLeast || l.may() != 0 {
		t.Errorf("%d bytes are asked for, and %d more (%v)", most, l.may(), err)
	}
	l.measure(most, time.Millisecond, time.Duration(most))
	end()
	if most := l.may(); most < roomBegin/4 || !l.soon(roomBegin) {
		t.Errorf("at 1 GB/s, %d bytes are asked for", most)
	}
}
