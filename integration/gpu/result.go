package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/conformance"
)

// Verdicts of a case.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped"
)

// result is what came of a case.
type result struct {
	Case    string   `json:"case"`
	About   string   `json:"about"`
	Run     string   `json:"run,omitempty"` // when and where, in a report of several runs
	Verdict string   `json:"verdict"`
	Why     string   `json:"why,omitempty"` // it failed or was skipped
	Seconds float64  `json:"seconds"`       // that the case took
	Checks  []string `json:"checks,omitempty"`
	// Messages are what programs said that is worth reading: refusals, and the like.
	Messages []message `json:"messages,omitempty"`
	// Times in seconds, one for each round, by what took them. See report.go for the names.
	Times    map[string][]float64 `json:"times,omitempty"`
	Snapshot map[string]int64     `json:"snapshot,omitempty"` // bytes
	Growth   []grown              `json:"growth,omitempty"`   // where there were many checkpoints
	Costs    []cost               `json:"costs,omitempty"`    // where they were measured
	Evidence map[string]string    `json:"evidence,omitempty"` // ends of logs, where it failed
	// Conformance is what two runs of the conformance program differ in.
	Conformance *conformance.Comparison `json:"conformance,omitempty"`
}

type message struct {
	From string `json:"from"`
	Text string `json:"text"`
}

// report is all results of a run.
type report struct {
	Began   time.Time `json:"began"`
	Machine machine   `json:"machine"`
	Results []*result `json:"results"`
}

func (p *report) add(r *result) { p.Results = append(p.Results, r) }

// checked writes down what was found to be as it must be.
func (r *result) checked(format string, args ...any) {
	r.Checks = append(r.Checks, fmt.Sprintf(format, args...))
}

func (r *result) said(from, text string) {
	if text = strings.TrimSpace(text); text != "" {
		r.Messages = append(r.Messages, message{from, text})
	}
}

func (r *result) took(what string, seconds float64) { r.Times[what] = append(r.Times[what], seconds) }

func (r *result) skip(format string, args ...any) *result {
	r.Verdict, r.Why = skipped, fmt.Sprintf(format, args...)
	return r
}

// String is a line for the log.
func (r *result) String() string {
	text := fmt.Sprintf("%s: %s in %.1f s", r.Case, r.Verdict, r.Seconds)
	if r.Why != "" {
		text += ": " + r.Why
	}
	return text
}

// median of some seconds, and whether there are any.
func median(times []float64) (float64, bool) {
	if len(times) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(times))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2, true
}
