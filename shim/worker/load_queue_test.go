package worker

import (
	"slices"
	"testing"
	"time"
)

// TestQueue gives parts as they come, waits for those that do not, and for none that nobody wants.
func TestQueue(t *testing.T) {
	q := newQueue([]int64{10, 4, 0}, 4, nil)
	var got []part
	for {
		p, some := q.next()
		if !some {
			break
		}
		got = append(got, p)
	}
	want := []part{{piece: 0}, {piece: 0, offset: 4}, {piece: 0, offset: 8}, {piece: 1}}
	if !slices.EqualFunc(got, want, func(a, b part) bool { return a.piece == b.piece && a.offset == b.offset }) {
		t.Errorf("it gives %v", got)
	}

	q = newQueue(nil, 4, nil)
	q.awaited = []part{{piece: 7}}
	if !q.awaits() {
		t.Error("it awaits nothing")
	}
	came := make(chan bool)
	next := func() {
		_, some := q.next()
		came <- some
	}
	go next()
	select {
	case <-came:
		t.Fatal("it does not wait")
	case <-time.After(20 * time.Millisecond):
	}
	q.look()
	if some := <-came; !some || q.awaits() {
		t.Error("what has come is not given")
	}
	q.awaited = []part{{piece: 8}}
	go next()
	time.Sleep(10 * time.Millisecond)
	q.stop()
	if <-came {
		t.Error("it gives more than is wanted")
	}
}
