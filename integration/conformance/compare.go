// Package conformance compares what integration/gpu/workloads/conformance.c prints with cryo's library and without it. The lines of the driver's and the
// runtime's memory API are the same, but for those that the table of differences has, with a reason each.
package conformance

import (
	"fmt"
	"regexp"
	"strings"
)

// Difference is a call with another outcome with the library than without.
type Difference struct {
	Call    string `json:"call"` // the test, the number of the call in the test, the function, and the arguments that matter
	Without string `json:"without"`
	With    string `json:"with"`
	Why     string `json:"why,omitempty"` // empty: no reason is known
}

func (d Difference) String() string {
	text := fmt.Sprintf("%s: %s without the library, %s with it", d.Call, d.Without, d.With)
	if d.Why != "" {
		text += " (" + d.Why + ")"
	}
	return text
}

// Comparison is what came of two runs.
type Comparison struct {
	Calls       int          `json:"calls"` // that were made without the library, functions that the driver lacks left out
	Differences []Difference `json:"differences"`
	// Ended are tests that did not come to their end, in one run or both; Uncalled are functions that no test has called.
	Ended    []string `json:"ended,omitempty"`
	Uncalled []string `json:"uncalled,omitempty"`
}

// line is a call of a test: "TEST NUMBER NAME(WHAT) OUTCOME".
type line struct{ key, call, outcome string }

var form = regexp.MustCompile(`^(\S+ (?:\d+|end)) (?:(.*?\)) )?(.*)$`)

// lines reads what the program has printed.
func lines(output string) (all []line, uncalled []string) {
	for text := range strings.Lines(output) {
		text = strings.TrimRight(text, "\r\n")
		if name, ok := strings.CutPrefix(text, "# not called: "); ok {
			uncalled = append(uncalled, name)
		}
		if m := form.FindStringSubmatch(text); m != nil && !strings.HasPrefix(text, "#") {
			all = append(all, line{m[1], strings.TrimSpace(m[1] + " " + m[2]), m[3]})
		}
	}
	return all, uncalled
}

// deaths are outcomes after which a test makes no further call.
var deaths = regexp.MustCompile(`^= (SIG\w+|no end)$|^status `)

// Compare compares the outputs of two runs on one machine. It fails where one of them is none of the program's.
func Compare(without, with string) (*Comparison, error) {
	first, uncalled := lines(without)
	second, _ := lines(with)
	if len(first) == 0 || len(second) == 0 {
		return nil, fmt.Errorf("no calls: %d without the library, %d with it", len(first), len(second))
	}
	c := &Comparison{Uncalled: uncalled}
	others := map[string]line{}
	for _, l := range second {
		others[l.key] = l
	}
	for _, l := range first {
		if l.outcome != "absent" {
			c.Calls++
		}
		other, ok := others[l.key]
		if !ok {
			other.outcome = "not made"
		}
		delete(others, l.key)
		c.add(l, other)
	}
	for _, l := range second {
		if _, ok := others[l.key]; ok {
			c.add(line{l.key, l.call, "not made"}, l)
		}
	}
	return c, nil
}

func (c *Comparison) add(without, with line) {
	if deaths.MatchString(without.outcome) || deaths.MatchString(with.outcome) {
		c.Ended = append(c.Ended, fmt.Sprintf("%s: %s without the library, %s with it", without.call, without.outcome, with.outcome))
	}
	// Where a test goes another way, its next calls are others.
	if with.call != "" && with.call != without.call {
		with.outcome = strings.TrimPrefix(with.call, with.key+" ") + " " + with.outcome
	}
	if without.outcome == with.outcome {
		return
	}
	d := Difference{Call: without.call, Without: without.outcome, With: with.outcome}
	for _, k := range known {
		if k.form.MatchString(d.Call + " " + d.Without + " | " + d.With) {
			d.Why = k.why
			break
		}
	}
	c.Differences = append(c.Differences, d)
}

// Unexplained are the differences that the table does not have.
func (c *Comparison) Unexplained() (all []Difference) {
	for _, d := range c.Differences {
		if d.Why == "" {
			all = append(all, d)
		}
	}
	return all
}

// String is a line for people.
func (c *Comparison) String() string {
	return fmt.Sprintf("%d calls, %d differ, %d of them without a known reason", c.Calls, len(c.Differences), len(c.Unexplained()))
}
