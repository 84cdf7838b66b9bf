package restore

import "testing"

// TestHeadSegments: below eight cores no segment is pulled early. From eight cores on a quarter as many segments as cores are, four at most.
func TestHeadSegments(t *testing.T) {
	for cores, want := range map[int]int{1: 0, 2: 0, 4: 0, 7: 0, 8: 2, 16: 4, 64: 4} {
		if got := headSegments(cores); got != want {
			t.Errorf("%d cores: %d at once, want %d", cores, got, want)
		}
	}
}
