package image

import (
	"fmt"
	"strings"
	"testing"
)

// TestIntakeQueue: windows take turns, as many as may, and each's pieces keep their order.
func TestIntakeQueue(t *testing.T) {
	q := newIntakeQueue(2)
	windows := []*intakeWindow{{}, {}, {}}
	for i, n := range []int{3, 1, 3} {
		for piece := range n {
			q.put(&frameJob{number: uint64(10*i + piece)}, windows[i])
		}
	}
	var got []string
	take := func() {
		got = append(got, fmt.Sprint(q.take().number))
	}
	for range 4 {
		take()
	}
	q.put(&frameJob{number: 3}, windows[0])
	q.end()
	for range 4 {
		take()
	}
	if want := "0 10 20 1 21 2 22 3"; strings.Join(got, " ") != want {
		t.Errorf("%s instead of %s", got, want)
	}
	if job := q.take(); job != nil {
		t.Errorf("after the end there is %d", job.number)
	}
}
