package main

import (
	"testing"

	"github.com/cryo-project/cryo/integration/gputest"
)

// TestPassOn runs the case on a fake device.
func TestPassOn(t *testing.T) {
	h := gputest.New(t, 300)
	r := &result{Times: map[string][]float64{}}
	if err := passOn(t.Context(), r, h.Helper(), h.Devices[0], 2, 10<<20); err != nil {
		t.Fatal(err)
	}
	if len(r.Times) != 7 || len(r.Times["keeper.ready"]) != 2 || len(r.Checks) != 7 {
		t.Errorf("%d times, and %d checks: %v %q", len(r.Times), len(r.Checks), r.Times, r.Checks)
	}
}
