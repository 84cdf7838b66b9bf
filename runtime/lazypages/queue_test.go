package lazypages

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
