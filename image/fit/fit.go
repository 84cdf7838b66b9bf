// Package fit decides whether a snapshot can run on a host, before anything is started.
//
// All that is compared stands in one table of rules, see [Rules]; a mismatch is fatal or a warning. A fatal one can be
// overridden by the rule's name, by somebody who knows better.
package fit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/spec/failure"
)

// Target is the host that shall run the snapshot.
type Target struct {
	image.Host
	// PathExists tells whether a path is there on the host, for sources of bind mounts and for devices.
	PathExists func(path string) bool
	// Seccomp tells that the host's runc is built with seccomp.
	Seccomp bool
	// GPUs are looked at only for a snapshot that has some.
	GPUs GPUs
}

// Rule is one comparison.
type Rule struct {
	Name  string `json:"name"`  // what --force takes
	Fatal bool   `json:"fatal"` // else a warning
	Why   string `json:"why"`   // what happens to those who restore all the same
	check func(subject, Target) []mismatch
}

// Forcible tells whether the rule can be overridden: something may come of it.
func (r Rule) Forcible() bool { return !mandatory[r.Name] }

// mismatch is what a rule has against a host.
type mismatch struct{ problem, hint string }

// subject is a snapshot's config with its runtime specification decoded.
type subject struct {
	image.Config
	spec *specs.Spec // nil if it cannot be decoded
}

// Finding is one mismatch of a snapshot and a host.
type Finding struct {
	Rule    string `json:"rule"`
	Fatal   bool   `json:"fatal"`
	Forced  bool   `json:"forced,omitempty"` // fatal, but overridden
	Problem string `json:"problem"`
	Hint    string `json:"hint,omitempty"`
}

// Verdict is all that was found.
type Verdict struct {
	Findings []Finding `json:"findings"`
}

// Check compares a snapshot with a host, in the order of [Rules].
func Check(c image.Config, t Target) Verdict {
	s := subject{Config: c}
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err == nil {
		s.spec = &spec
	}
	v := Verdict{Findings: []Finding{}}
	for _, r := range Rules() {
		for _, m := range r.check(s, t) {
			v.Findings = append(v.Findings, Finding{Rule: r.Name, Fatal: r.Fatal, Problem: m.problem, Hint: m.hint})
		}
	}
	return v
}

// Force overrides the rules named; "all" is every rule that can be overridden. It is an error of kind InvalidArgument
// to name a rule that is not there.
func (v Verdict) Force(rules ...string) (Verdict, error) {
	known := Rules()
	for _, name := range rules {
		if name != "all" && !slices.ContainsFunc(known, func(r Rule) bool { return r.Name == name }) {
			return v, failure.New(errdefs.ErrInvalidArgument, "rules that can be overridden: "+strings.Join(Forcible(), ", ")+", or all", "there is no rule %q", name)
		}
	}
	forced := Verdict{Findings: slices.Clone(v.Findings)}
	for i, f := range forced.Findings {
		if f.Fatal && (slices.Contains(rules, f.Rule) || slices.Contains(rules, "all")) && !mandatory[f.Rule] {
			forced.Findings[i].Forced = true
		}
	}
	return forced, nil
}

// Fits tells that nothing fatal was found, or all of it is overridden.
func (v Verdict) Fits() bool { return len(v.fatal()) == 0 }

// Err is nil if the snapshot fits, else a [*MisfitError].
func (v Verdict) Err() error {
	if fatal := v.fatal(); len(fatal) > 0 {
		return &MisfitError{Findings: fatal}
	}
	return nil
}

// Warnings are the findings that do not stand in the way.
func (v Verdict) Warnings() []Finding {
	return slices.DeleteFunc(slices.Clone(v.Findings), func(f Finding) bool { return f.Fatal && !f.Forced })
}

func (v Verdict) fatal() []Finding {
	return slices.DeleteFunc(slices.Clone(v.Findings), func(f Finding) bool { return !f.Fatal || f.Forced })
}

// MisfitError lists all that keeps a snapshot from running on a host, at least one finding. Its kind is [failure.ErrMisfit]; the command line
// gives it an exit code of its own.
type MisfitError struct{ Findings []Finding }

func (e *MisfitError) Error() string {
	var b strings.Builder
	b.WriteString("the snapshot does not fit this host:")
	for _, f := range e.Findings {
		fmt.Fprintf(&b, "\n  %s: %s", f.Rule, f.Problem)
	}
	return b.String()
}

// Hint says what to do about each.
func (e *MisfitError) Hint() string {
	var lines []string
	for _, f := range e.Findings {
		if f.Hint != "" && !slices.Contains(lines, f.Hint) {
			lines = append(lines, f.Hint)
		}
	}
	return strings.Join(lines, "\n")
}

// ByRule names the first rule; see [failure.Error.Rule].
func (e *MisfitError) ByRule() string { return e.Findings[0].Rule }

// Unwrap gives the kind.
func (e *MisfitError) Unwrap() error { return failure.ErrMisfit }

// Forcible names the rules that can be overridden.
func Forcible() (names []string) {
	for _, r := range Rules() {
		if r.Fatal && r.Forcible() {
			names = append(names, r.Name)
		}
	}
	return names
}
