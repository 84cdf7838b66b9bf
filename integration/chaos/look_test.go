package main

import (
	"slices"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

func TestWithout(t *testing.T) {
	got := without([]string{"a", "b", "c"}, []string{"b", "d"})
	if !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("got %v", got)
	}
}

func TestTicks(t *testing.T) {
	process := func(n float64) any { return map[string]any{"ticks": n} }
	a := lab.Answer{State: map[string]any{"processes": []any{process(3), process(4)}}}
	if got := ticks(a); got != 7 {
		t.Errorf("got %v ticks, want 7", got)
	}
	if got := ticks(lab.Answer{}); got != 0 {
		t.Errorf("got %v ticks of nothing", got)
	}
}
