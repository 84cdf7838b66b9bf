package restore

import "testing"

// TestHeadSegments: no segment is pulled early below eight cores, then one for eight cores, four at most.
func TestHeadSegments(t *testing.T) {
	for cores, want := range map[int]int{1: 0, 2: 0, 4: 0, 7: 0, 8: 1, 16: 2, 32: 4, 64: 4} {
		if got := headSegments(cores); got != want {
			t.Errorf("%d cores: %d at once, want %d", cores, got, want)
		}
	}
}
