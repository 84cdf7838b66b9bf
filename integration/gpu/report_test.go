package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		times []float64
		want  float64
		ok    bool
	}{{nil, 0, false}, {[]float64{3}, 3, true}, {[]float64{5, 1, 3}, 3, true}, {[]float64{4, 1, 3, 2}, 2.5, true}} {
		if got, ok := median(test.times); got != test.want || ok != test.ok {
			t.Errorf("median(%v) = %v, %v", test.times, got, ok)
		}
	}
}

// TestByHand makes the rows of a case that was also measured by hand.
func TestByHand(t *testing.T) {
	r := &result{Case: "plain-1", About: "a case", Verdict: passed, Times: map[string][]float64{
		"live.freeze": {2.02, 2.06}, "restore": {1},
		"hand.lock": {0.01}, "hand.checkpoint": {0.79}, "hand.dump": {0.7}, "hand.restore": {0.48}, "hand.unlock": {0.02},
	}}
	text := string((&report{Results: []*result{r}}).markdown())
	want := "| plain-1 | a case | 2.04 | 1.00 |  |  | 1 |\n| plain-1 | by hand | 2.00 |  |  |  | 1 |\n"
	if !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
}

// TestMerge keeps what was run over what was skipped, and the later of two runs, and says which run each case is of.
func TestMerge(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	frozen := map[string][]float64{"live.freeze": {1}}
	for i, results := range [][]*result{
		{{Case: "a", About: "a", Verdict: failed}, {Case: "b", About: "b", Verdict: passed, Times: frozen}},
		{{Case: "a", About: "a", Verdict: passed, Times: frozen}, {Case: "b", About: "b", Verdict: skipped}, {Case: "c", About: "c", Verdict: skipped, Why: "no GPU"}},
	} {
		one := filepath.Join(dir, string(rune('1'+i)))
		if err := os.Mkdir(one, 0o755); err != nil {
			t.Fatal(err)
		}
		run := &report{Began: time.Date(2026, 11, 21+i, 0, 0, 0, 0, time.UTC), Machine: machine{System: "a system", Cores: 2, Store: "tmpfs"}, Results: results}
		if err := run.write(one); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, filepath.Join(one, "results.json"))
	}
	if err := mergeReports(dir, paths); err != nil {
		t.Fatal(err)
	}
	for file, wants := range map[string][]string{
		"results.md":   {"| a | a | 1.00 |  |  |  | 1 |", "| b | b | 1.00 |  |  |  | 2 |", ": c (skipped: no GPU).", "1. 2026-11-22, a system, 2 cores, tmpfs\n2. 2026-11-21,"},
		"results.json": {`"run": "2026-11-22, a system, 2 cores, tmpfs"`, `"run": "2026-11-21, a system, 2 cores, tmpfs"`},
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}
