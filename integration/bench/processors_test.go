package main

import (
	"testing"
	"time"
)

func TestParseProcessors(t *testing.T) {
	s, ok := parseProcessors("cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	if want := (processorSample{used: 171, all: 621}); !ok || s != want {
		t.Errorf("%+v, %v, want %+v", s, ok, want)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8 9 10", "cpu 1 2 3 x 5 6 7 8 9 10"} {
		if _, ok := parseProcessors(bad); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestProcessorsBetween(t *testing.T) {
	zero := time.Now()
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	u := processorUse{samples: []processorSample{{at(0), 1000, 2000}, {at(20), 1000, 2004}, {at(40), 1004, 2008}, {at(60), 1008, 2012}, {at(80), 1008, 2016}}}
	for _, test := range []struct {
		first, last int
		want        float64
	}{{20, 60, 1}, {0, 80, 0.5}, {10, 30, 0.5}, {-50, 20, 0}, {60, 500, 0}} {
		if got := u.between(at(test.first), at(test.last)); got != test.want {
			t.Errorf("from %d to %d: %v, want %v", test.first, test.last, got, test.want)
		}
	}
	if got := (&processorUse{}).between(at(0), at(1)); got != 0 {
		t.Errorf("without samples: %v", got)
	}
}

// TestWatchProcessors looks at this machine while one processor is in use.
func TestWatchProcessors(t *testing.T) {
	u := watchProcessors()
	first := time.Now()
	for time.Since(first) < 300*time.Millisecond {
		continue
	}
	last := time.Now()
	u.stop()
	if share := u.between(first, last); share <= 0 || share > 1 {
		t.Errorf("%v of the processors' time was in use", share)
	}
}
