package registry

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLineRecovers has the first bytes come late, as from a disk, and all others at 1 GB/s after a millisecond: parts become large, though the first ones are here
// sooner than a rate is measured.
func TestLineRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{streams: 4}
		part := func(late time.Duration) int64 {
			turn, err := l.begin(t.Context(), 64<<20, rest)
			if err != nil {
				t.Fatal(err)
			}
			defer turn.end()
			time.Sleep(time.Millisecond)
			turn.answered()
			turn.moved(4 << 10)
			time.Sleep(late)
			for left := turn.most - 4<<10; left > 0; left -= partLeast {
				time.Sleep(partLeast * time.Second / 1e9)
				turn.moved(min(left, partLeast))
			}
			return turn.most
		}
		part(100 * time.Millisecond)
		last := int64(0)
		for range 200 {
			last = part(0)
		}
		if last < 8<<20 {
			t.Errorf("at 1 GB/s, parts of %d bytes are asked for", last)
		}
	})
}

// TestLineSlow has parts come at 2 MB/s, with round trips of 50 ms: no more is asked for than comes in 100 ms, or in two round trips.
func TestLineSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{streams: 1}
		for n := range 50 {
			turn, err := l.begin(t.Context(), 64<<20, rest)
			if err != nil {
				t.Fatal(err)
			}
			if n > 5 && turn.most > 400<<10 {
				t.Errorf("part %d: %d bytes are asked for", n, turn.most)
			}
			time.Sleep(50 * time.Millisecond)
			turn.answered()
			for left := turn.most; left > 0; left -= 16 << 10 {
				time.Sleep(16 << 10 * time.Second / 2e6)
				turn.moved(min(left, 16<<10))
			}
			turn.end()
		}
	})
}
