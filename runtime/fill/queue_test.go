package fill

import (
	"testing"
	"time"
)

// TestCalm has the rest wait for those who wait for pages, though not for ever.
func TestCalm(t *testing.T) {
	for _, test := range []struct {
		name string
		calm time.Duration
	}{{"at once", 0}, {"soon", time.Millisecond}, {"never calm", time.Hour}} {
		f := NewFiller(nil)
		f.Calm = test.calm
		s := newSpace(1, 7, -1, &Layout{Pieces: []Piece{{{Addr: 1 << 20, Length: 1 << 12}}, {{Addr: 1 << 21, Length: 1 << 12}}}})
		f.spaces = append(f.spaces, s)
		f.faults = append(f.faults, fault{s, 1 << 21})
		f.Restored()
		if f.mu.Lock(); test.calm == 0 && !f.calm {
			t.Errorf("%s: the rest waits", test.name)
		}
		f.mu.Unlock()
		if _, addr, piece := f.next(true); addr != 1<<21 || piece != -1 {
			t.Errorf("%s: first comes %#x, piece %d", test.name, addr, piece)
		}
		if got, _, piece := f.next(true); got != s || piece != 0 {
			t.Errorf("%s: the rest begins with piece %d", test.name, piece)
		}
		f.stop()
	}
}

// TestWithout looks for what is there once until more has arrived, however often it is woken.
func TestWithout(t *testing.T) {
	f := NewFiller(nil)
	s := newSpace(1, 7, -1, &Layout{Pieces: []Piece{{{Addr: 1 << 20, Length: 1 << 12}}, {{Addr: 1 << 21, Length: 1 << 12}}}})
	f.spaces = append(f.spaces, s)
	asked, there := 0, -1 // guarded by the filler's mu
	f.Next = func(pid, from int) int {
		asked++
		return there
	}
	f.Restored()
	found := make(chan int)
	go func() {
		_, _, piece := f.next(true)
		found <- piece
	}()
	for range 20 {
		time.Sleep(time.Millisecond)
		f.mu.Lock()
		f.change.Broadcast()
		f.mu.Unlock()
	}
	f.mu.Lock()
	if asked != 1 {
		t.Errorf("it has looked %d times", asked)
	}
	there = 1
	f.mu.Unlock()
	f.Arrived()
	if piece := <-found; piece != 1 {
		t.Errorf("it has found piece %d", piece)
	}
}
