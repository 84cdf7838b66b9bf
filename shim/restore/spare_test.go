package restore

import "testing"

// TestBehindRoom: through the page cache goes what there is memory for, beside what is restored.
func TestBehindRoom(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		available, pulled int64
		want              int64
	}{
		{60 * gib, 2 * gib, 28 * gib},
		{100 * gib, 2 * gib, 32 * gib},
		{10 * gib, 2 * gib, 3 * gib},
		{5 * gib, 2 * gib, 512 << 20},
		{5*gib - 2, 2 * gib, 0},
		{100 * gib, 64 * gib, 0},
	} {
		if got := behindRoom(test.available, test.pulled); got != test.want {
			t.Errorf("%d GiB available, %d GiB pulled: room for %d bytes, want %d", test.available/gib, test.pulled/gib, got, test.want)
		}
	}
}

// TestHeadSegments: with eight cores and more, and so that a quarter of the cores is left where each segment takes two.
func TestHeadSegments(t *testing.T) {
	for cores, want := range map[int][2]int{2: {0, 0}, 4: {0, 1}, 7: {0, 2}, 8: {1, 3}, 16: {2, 6}, 24: {3, 8}, 64: {4, 8}} {
		if minParallel, maxParallel := headSegments(cores); minParallel != want[0] || maxParallel != want[1] {
			t.Errorf("%d cores: %d and %d at once, want %d and %d", cores, minParallel, maxParallel, want[0], want[1])
		}
	}
}
