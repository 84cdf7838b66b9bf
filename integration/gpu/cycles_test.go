package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestCycles ends early where time is up, and says which cycle has failed.
func TestCycles(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name    string
		within  time.Duration // the context's
		count   int
		most    time.Duration
		each    time.Duration
		fails   int // this one, from 1
		atMost  int
		atLeast int
		want    string
	}{
		{"all", time.Hour, 5, time.Minute, 0, 0, 5, 5, ""},
		{"its own time", time.Hour, 1000, 50 * time.Millisecond, 10 * time.Millisecond, 0, 5, 1, ""},
		{"the context's time", 50 * time.Millisecond, 1000, time.Minute, 10 * time.Millisecond, 0, 5, 1, ""},
		{"no time", time.Hour, 5, -time.Second, 0, 0, 0, 0, "no cycle"},
		{"fails", time.Hour, 5, time.Minute, 0, 3, 2, 2, "cycle 3: broken"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), test.within)
		done, err := cycles(ctx, test.count, test.most, func(n int) error {
			time.Sleep(test.each)
			if n+1 == test.fails {
				return broken
			}
			return nil
		})
		cancel()
		if done > test.atMost || done < test.atLeast {
			t.Errorf("%s: %d were done", test.name, done)
		}
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// TestGrowth tells what grows all the time from what comes and goes.
func TestGrowth(t *testing.T) {
	const what = "descriptors of the shim" // 8 more are no growth
	for _, test := range []struct {
		name string
		seen []int64
		want bool
	}{
		{"steady", []int64{10, 10, 10, 10, 10, 10, 10, 10}, false},
		{"one a checkpoint", []int64{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25}, true},
		{"comes and goes", []int64{10, 40, 10, 40, 10, 40, 10, 40}, false},
		{"a little", []int64{10, 11, 12, 13, 14, 15, 16, 17}, false},
		{"high at first", []int64{90, 10, 10, 10, 20, 20, 30, 30}, false},
		{"once", []int64{1000}, false},
	} {
		g := &growth{}
		for _, n := range test.seen {
			g.add(what, n)
		}
		r := &result{}
		if beyond := g.verdict(r, "left running"); (len(beyond) > 0) != test.want {
			t.Errorf("%s: beyond bounds %q", test.name, beyond)
		}
		if len(r.Growth) != 1 || r.Growth[0].First != test.seen[0] || r.Growth[0].Last != test.seen[len(test.seen)-1] {
			t.Errorf("%s: %+v", test.name, r.Growth)
		}
	}
}

// TestCosts compares containers in turn, without and with, and takes the larger noise.
func TestCosts(t *testing.T) {
	costs := costsOf([]map[string][]float64{
		{"launch": {2, 2, 2}, "nothing": {0}}, {"launch": {2.2, 2.2, 2.2}, "nothing": {0}}, {"launch": {2.02, 2.02, 2.02}, "nothing": {0}}, {"launch": {2.178, 2.178, 2.178}, "nothing": {0}},
	})
	if len(costs) != 1 || costs[0].Turns != 3 {
		t.Fatalf("%+v", costs)
	}
	for name, numbers := range map[string][2]float64{
		"without": {costs[0].Without, 2.01}, "with": {costs[0].With, 2.189}, "ratio": {costs[0].Ratio, 2.189 / 2.01}, "noise": {costs[0].Noise, 1 / (2.2 / 2.178)},
	} {
		if d := numbers[0] - numbers[1]; d > 1e-6 || d < -1e-6 {
			t.Errorf("%s is %v, want %v", name, numbers[0], numbers[1])
		}
	}
}

// TestTables makes the rows of cases that were measured in several ways.
func TestTables(t *testing.T) {
	text := string((&report{Results: []*result{
		{Case: "keeper-freeze", About: "a case", Verdict: passed, Times: map[string][]float64{
			"gib 60.freeze": {1.2}, "gib 60.all": {9}, "gib 4.freeze": {1, 1.1, 1.2}, "first.gib 4.freeze": {7},
		}},
		{Case: "keeper-1", About: "a case", Verdict: passed, Times: map[string][]float64{
			"live.freeze": {1, 2, 3}, "restore": {1, 4}, "registry.restore": {6}, "prewarmed.restore": {0.5}, "driver.restore": {8}, "driver.live.freeze": {9},
		}},
	}}).markdown())
	for _, want := range []string{
		"| keeper-freeze | a case |  |  |  |  | 1 |\n| keeper-freeze | 4 GiB | 1.10 |  |  |  | 1 |\n| keeper-freeze | 60 GiB | 1.20 |  |  |  | 1 |\n",
		"| keeper-1 | a case | 2.00 (9.00) | 2.50 (8.00) | 6.00 | 0.50 | 1 |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
