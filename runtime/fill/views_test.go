package fill

import (
	"math/rand/v2"
	"testing"
)

// TestViews compares views with a table of pages.
func TestViews(t *testing.T) {
	const pages = 64
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		v := everything()
		now := map[uint64]uint64{} // page now -> page as it was
		for p := range uint64(4 * pages) {
			now[p] = p
		}
		for range 1 + r.IntN(30) {
			start := uint64(r.IntN(pages))
			end := start + uint64(r.IntN(pages/4))
			switch r.IntN(3) {
			case 0:
				v, _ = v.cut(start, end)
				for p := start; p < end; p++ {
					delete(now, p)
				}
			case 1:
				v = v.without(start, end)
				for p, was := range now {
					if was >= start && was < end {
						delete(now, p)
					}
				}
			case 2:
				to := uint64(r.IntN(2 * pages))
				if to < end && start < to+end-start {
					continue // the kernel refuses it
				}
				v = v.move(start, end, to)
				moved := map[uint64]uint64{}
				for p := start; p < end; p++ {
					if was, ok := now[p]; ok {
						moved[to+p-start] = was
					}
					delete(now, p)
				}
				for p := start; p < end; p++ {
					delete(now, to+p-start)
				}
				for p, was := range moved {
					now[p] = was
				}
			}
		}
		for p := range uint64(4 * pages) {
			was, ok := v.at(p)
			if want, in := now[p]; in != ok || in && want != was {
				t.Fatalf("seed %d: %d was %d, %v instead of %d, %v", seed, p, was, ok, want, in)
			}
			if !ok {
				continue
			}
			if back, n, ok := v.find(was); !ok || back != p || n == 0 {
				t.Fatalf("seed %d: %d is at %d, %v instead of %d", seed, was, back, ok, p)
			}
		}
		for was := range uint64(4 * pages) {
			here, n, ok := v.find(was)
			if n == 0 {
				t.Fatalf("seed %d: nothing follows %d", seed, was)
			}
			if p, in := v.at(here); ok && (!in || p != was) {
				t.Fatalf("seed %d: %d is at %d, where %d is", seed, was, here, p)
			}
		}
	}
}
