package main

import (
	"fmt"
	"slices"
)

// figure is one line of the table: what cryo took in every round beside what it is compared with, and what is wanted.
type figure struct {
	Case    string    `json:"case"`
	Subject string    `json:"subject"` // what it was measured on
	What    string    `json:"what"`
	Unit    string    `json:"unit"`           // "s" or "B"
	Cryo    []float64 `json:"cryo,omitempty"` // one a round
	Beside  []float64 `json:"beside,omitempty"`
	// BesideWhat says what that is.
	BesideWhat   string `json:"besideWhat,omitempty"`
	BesideNotRun string `json:"besideNotRun,omitempty"` // why there is nothing beside it
	Aim          aim    `json:"aim"`
	// Met says whether the aim was met, and is missing where there is no aim or no figure.
	Met    *bool   `json:"met,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"`  // of the medians, cryo's to the other
	NotRun string  `json:"notRun,omitempty"` // why there is no figure
	Note   string  `json:"note,omitempty"`
}

// aim is what issue or user want of a figure. The zero value wants nothing: it is reported.
type aim struct {
	Ratio float64 `json:"ratio,omitempty"` // the median is at most so many times that of what is beside it
	Most  float64 `json:"most,omitempty"`  // no round has more, in the figure's unit
}

// spread is the median of some rounds and what it lies between.
type spread struct{ median, least, most float64 }

// spreadOf says whether there are any.
func spreadOf(rounds []float64) (spread, bool) {
	if len(rounds) == 0 {
		return spread{}, false
	}
	sorted := slices.Sorted(slices.Values(rounds))
	n := len(sorted)
	return spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}, true
}

// judge compares with the aim. A figure without any round says why before.
func (f *figure) judge() {
	f.Met, f.Ratio = nil, 0
	ours, ok := spreadOf(f.Cryo)
	if !ok {
		if f.NotRun == "" {
			f.NotRun = "no round was completed"
		}
		return
	}
	other, beside := spreadOf(f.Beside)
	if beside && other.median > 0 {
		f.Ratio = ours.median / other.median
	}
	var met bool
	switch {
	case f.Aim.Ratio > 0 && f.Ratio > 0:
		met = f.Ratio <= f.Aim.Ratio
	case f.Aim.Most > 0:
		met = ours.most <= f.Aim.Most
	default:
		return
	}
	f.Met = &met
}

// verdict is a word for people.
func (f *figure) verdict() string {
	switch {
	case f.NotRun != "":
		return "not run: " + short(f.NotRun)
	case f.Met != nil && *f.Met:
		return "met"
	case f.Met != nil:
		return "**missed**"
	case f.Aim == aim{}:
		return "reported"
	}
	return "nothing to compare with"
}

// text is the aim for people.
func (a aim) text(unit string) string {
	switch {
	case a.Ratio > 0:
		return fmt.Sprintf("at most %.2f of it", a.Ratio)
	case a.Most > 0:
		return "at most " + quantity(a.Most, unit)
	}
	return ""
}

// quantity is a number with its unit.
func quantity(n float64, unit string) string {
	switch {
	case unit == "B" && n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", n/(1<<30))
	case unit == "B" && n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", n/(1<<20))
	case unit == "B":
		return fmt.Sprintf("%.1f KiB", n/(1<<10))
	case n >= 10:
		return fmt.Sprintf("%.1f s", n)
	case n >= 1:
		return fmt.Sprintf("%.2f s", n)
	}
	return fmt.Sprintf("%.0f ms", 1000*n)
}

// rounds is the median of some rounds, with the least and the most where there are several.
func rounds(all []float64, unit string) string {
	s, ok := spreadOf(all)
	switch {
	case !ok:
		return ""
	case len(all) == 1:
		return quantity(s.median, unit)
	}
	return fmt.Sprintf("%s (%s to %s)", quantity(s.median, unit), quantity(s.least, unit), quantity(s.most, unit))
}
