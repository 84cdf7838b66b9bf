package image

import "testing"

func TestRule(t *testing.T) {
	for all, want := range map[int]struct{ spare, half int }{
		1: {0, 0}, 2: {0, 0}, 3: {2, 1}, 4: {3, 2}, 8: {7, 4}, 16: {15, 8}, 192: {191, 96},
	} {
		if spare, half := SpareCores(all), HalfCores(all); spare != want.spare || half != want.half {
			t.Errorf("of %d cores %d are spare, and half are %d, want %+v", all, spare, half, want)
		}
	}
}
