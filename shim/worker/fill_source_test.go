package worker

import (
	"slices"
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
)

// TestAfter: of parts that follow each other in a segment, all behind one that is not there are passed by; one that stands before it in the
// segment, or in another, is not.
func TestAfter(t *testing.T) {
	at := []struct{ segment, offset int }{{0, 0}, {0, 10}, {0, 20}, {1, 0}, {1, 5}, {0, 7}, {0, 8}}
	parts := make([]image.Part, len(at))
	for i := range parts {
		parts[i].Runs = []format.Run{{First: int64(i)}}
	}
	behind := func(p, other image.Part) bool {
		a, b := at[p.Runs[0].First], at[other.Runs[0].First]
		return a.segment == b.segment && a.offset >= b.offset
	}
	if got, want := after(parts, behind), []int{3, 3, 3, 5, 5, 7, 7}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := after(nil, behind); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
