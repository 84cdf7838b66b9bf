package registry

import (
	"context"
	"errors"
	"testing"
)

// TestTurns: few leave half, all come back, and who waits for a turn ends with its context.
func TestTurns(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	has := func(turns *turns) (n int) {
		for ; turns.take(ended) == nil && n < 100; n++ {
		}
		for range n {
			turns.give()
		}
		return n
	}
	turns := newTurns(5)
	for _, step := range []struct {
		do   func()
		want int
	}{{func() {}, 5}, {turns.few, 3}, {turns.few, 3}, {turns.all, 5}, {turns.all, 5}} {
		step.do()
		// A select takes one of what is ready, so the ended context may come first.
		most := 0
		for range 200 {
			most = max(most, has(turns))
		}
		if most != step.want {
			t.Errorf("%d may be taken, not %d", most, step.want)
		}
	}
	empty := newTurns(1)
	if err := empty.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := empty.take(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("without a turn: %v", err)
	}
}
