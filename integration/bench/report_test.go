package main

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		rounds []float64
		want   spread
	}{
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{4, 1}, spread{2.5, 1, 4}},
		{[]float64{9, 1, 2}, spread{2, 1, 9}},
		{[]float64{4, 3, 2, 1}, spread{2.5, 1, 4}},
	} {
		got, ok := spreadOf(test.rounds)
		if !ok || got != test.want {
			t.Errorf("%v: %v, want %v", test.rounds, got, test.want)
		}
	}
	if _, ok := spreadOf(nil); ok {
		t.Error("no rounds have a median")
	}
	rounds := []float64{3, 1, 2}
	spreadOf(rounds)
	if rounds[0] != 3 {
		t.Error("the order of the rounds was lost")
	}
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name    string
		figure  figure
		verdict string
		ratio   float64
	}{
		{"ratio met", figure{Cryo: []float64{1, 9, 1}, Beside: []float64{2, 2, 2}, Aim: aim{Ratio: 0.5}}, "met", 0.5},
		{"ratio missed", figure{Cryo: []float64{3}, Beside: []float64{2}, Aim: aim{Ratio: 1}}, "**missed**", 1.5},
		{"nothing beside it", figure{Cryo: []float64{3}, Aim: aim{Ratio: 1}}, "nothing to compare with", 0},
		{"worst round met", figure{Cryo: []float64{0.1, 0.5}, Aim: aim{Most: 0.5}}, "met", 0},
		{"worst round missed", figure{Cryo: []float64{0.1, 0.1, 0.6}, Aim: aim{Most: 0.5}}, "**missed**", 0},
		{"no aim", figure{Cryo: []float64{3}, Beside: []float64{2}}, "reported", 1.5},
		{"not run", figure{NotRun: "no disk", Aim: aim{Most: 1}}, "not run: no disk", 0},
		{"without a reason", figure{Aim: aim{Most: 1}}, "not run: no round was completed", 0},
	} {
		f := test.figure
		f.judge()
		if f.verdict() != test.verdict || math.Abs(f.Ratio-test.ratio) > 1e-9 {
			t.Errorf("%s: %q with ratio %v, want %q with %v", test.name, f.verdict(), f.Ratio, test.verdict, test.ratio)
		}
	}
}

func TestQuantity(t *testing.T) {
	for _, test := range []struct {
		n    float64
		unit string
		want string
	}{
		{0.0123, "s", "12 ms"}, {1.234, "s", "1.23 s"}, {98.76, "s", "98.8 s"},
		{1 << 10, "B", "1.0 KiB"}, {3 << 19, "B", "1.5 MiB"}, {1 << 31, "B", "2.00 GiB"},
	} {
		if got := quantity(test.n, test.unit); got != test.want {
			t.Errorf("%v %s: %q, want %q", test.n, test.unit, got, test.want)
		}
	}
}

func TestText(t *testing.T) {
	p := &report{Warnings: []string{"it was busy"}}
	p.add(
		&figure{Case: "freeze", Subject: "2 GiB", What: "pause", Unit: "s", Cryo: []float64{1, 3, 2}, Beside: []float64{4}, BesideWhat: "criu", Aim: aim{Ratio: 1}},
		&figure{Case: "push", Subject: "2 GiB", What: "a|b", Unit: "s", NotRun: strings.Repeat("x", 500), BesideWhat: "ctr", BesideNotRun: "it\nfailed"},
		&figure{Case: "peak", Subject: "8 GiB", What: "memory", Unit: "B", Cryo: []float64{1 << 30}, Aim: aim{Most: 1 << 29}},
	)
	text := p.text()
	for _, want := range []string{
		"## 2 GiB\n", "## 8 GiB\n", "2.00 s (1.00 s to 3.00 s)", "criu: 4.00 s", "| 0.5 ", "at most 1.00 of it", "| met |", `a\|b`, "ctr: not run: it failed",
		"**missed**", "1 aims met, 1 missed, 1 figures not run", "Warning: it was busy",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	width := 0
	for line := range strings.Lines(text) {
		if columns := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); columns > 0 && columns != 7 {
			t.Errorf("%d columns: %s", columns-1, line)
		}
		width = max(width, len(line))
	}
	if width > 400 {
		t.Errorf("a line of %d characters", width)
	}
}

// TestMerge joins runs of parts: a figure that was measured wins over one that was not, and the later over the earlier.
func TestMerge(t *testing.T) {
	first, second := &report{Seconds: 1}, &report{Seconds: 2}
	first.Machine.Cores, second.Machine.Cores = 2, 2
	first.add(&figure{Case: "a", What: "x", Cryo: []float64{1}}, &figure{Case: "b", NotRun: "no time"}, &figure{Case: "c", Cryo: []float64{1}})
	second.add(&figure{Case: "a", What: "x", Cryo: []float64{2}}, &figure{Case: "b", Cryo: []float64{2}}, &figure{Case: "c", NotRun: "no time"}, &figure{Case: "d", Cryo: []float64{2}})
	dir := t.TempDir()
	var paths []string
	for name, p := range map[string]*report{"1.json": first, "2.json": second} {
		if err := p.write(filepath.Join(dir, "sub", name)); err != nil {
			t.Fatal(err)
		}
	}
	paths = append(paths, filepath.Join(dir, "sub/1.json"), filepath.Join(dir, "sub/2.json"))
	all, err := merge(paths)
	if err != nil {
		t.Fatal(err)
	}
	var got []float64
	for _, f := range all.Figures {
		got = append(got, f.Cryo...)
	}
	if len(got) != 4 || got[0] != 2 || got[1] != 2 || got[2] != 1 || got[3] != 2 || all.Seconds != 3 || len(all.Warnings) != 0 {
		t.Errorf("%v, %v s, warnings %v", got, all.Seconds, all.Warnings)
	}
	second.Machine.Cores = 16
	if err := second.write(paths[1]); err != nil {
		t.Fatal(err)
	}
	if all, err = merge(paths); err != nil || len(all.Warnings) != 1 {
		t.Errorf("another machine: %v, %v", all.Warnings, err)
	}
}
